"""Finished images and their pins."""
