"""Benchmarks that compare riffle_spark with its alternatives. Run one with ``./run bench NAME``."""
