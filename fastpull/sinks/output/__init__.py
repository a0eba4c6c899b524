"""Destinations: the path of an output, what it may replace, and how it is published."""
