"""A client of the distribution specification's pull operations."""
