"""Data blocks and fragments of a layer: cut, compress, store."""
