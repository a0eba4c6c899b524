"""Sources: they resolve references to images, and provide the blobs."""
