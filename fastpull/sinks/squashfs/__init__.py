"""The squashfs sink: a root filesystem as one compressed image file."""
