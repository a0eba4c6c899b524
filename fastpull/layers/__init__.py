"""Layers: inflating them, scanning their tar, merging their indexes. Spec: image-spec layer.md."""
