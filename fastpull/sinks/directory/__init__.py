"""The directory sink."""
