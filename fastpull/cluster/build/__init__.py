"""Layers built by one node for all."""
