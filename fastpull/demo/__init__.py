"""The demonstration: a loopback registry, an image with the difficult features of layers, and a check of the result."""

from __future__ import annotations

from fastpull.demo.check import check_tree, remove_tree
from fastpull.demo.image import DemoImage, make_image
from fastpull.demo.registry import LoopbackRegistry

__all__ = ["DemoImage", "LoopbackRegistry", "check_tree", "make_image", "remove_tree"]
