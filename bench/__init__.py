"""Benchmarks: whole pulls beside other programs (``python -m bench``), and single stages (``pytest bench/micro``)."""
