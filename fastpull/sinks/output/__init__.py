"""Destinations: where an output goes, what it may replace, and how it is published."""
