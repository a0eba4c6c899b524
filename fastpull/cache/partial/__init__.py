"""Partial blobs: their file, extents and journal."""
