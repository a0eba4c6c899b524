"""The tar sink."""
