"""Maintenance of the cache: list, verify, collect garbage."""
