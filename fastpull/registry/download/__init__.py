"""Downloads of blobs in concurrent ranges."""
