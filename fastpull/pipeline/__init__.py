"""The way of a byte: from the source through the layers into the sink. Start reading in ``pull.py``."""
