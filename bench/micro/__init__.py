"""Benchmarks of single stages: ``pytest bench/micro --benchmark-enable``.

Amounts and throughput are in each benchmark's ``extra_info``, which ``--benchmark-json FILE`` writes.
"""
