"""A whole squashfs image: planned from its layers' blocks, written, compared."""
