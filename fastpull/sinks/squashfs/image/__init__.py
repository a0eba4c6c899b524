"""A whole squashfs image: plan, write, fingerprint, and transfer from the cache."""
