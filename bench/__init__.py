"""Benchmarks of whole pulls (``python -m bench``) and of single stages (``pytest bench/micro``)."""
