"""The on-disk records of squashfs 4.0."""
