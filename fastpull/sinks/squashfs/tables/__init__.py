"""The tables of a squashfs image."""
