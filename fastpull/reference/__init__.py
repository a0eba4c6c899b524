"""The native stage again, in plain Python: what tests compare it with, and what ``FASTPULL_NO_EXTENSIONS=1`` runs.

Its modules have the contracts of the parts in ``native/`` and are written from the specifications, not from them.
"""
