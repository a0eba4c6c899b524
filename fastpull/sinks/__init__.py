"""Sinks: where a merged tree goes."""
