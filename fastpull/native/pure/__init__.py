"""The native module in plain Python: the reference that tests compare with, run with ``FASTPULL_NO_EXTENSIONS=1``."""
