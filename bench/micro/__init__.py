"""Benchmarks of single stages: ``pytest bench/micro --benchmark-enable``.

``--benchmark-json FILE`` writes each benchmark's ``extra_info``, with its amounts and throughput.
"""
