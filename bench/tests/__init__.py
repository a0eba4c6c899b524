"""Tests of the benchmark itself: its limits, tables, pictures and simulation."""
