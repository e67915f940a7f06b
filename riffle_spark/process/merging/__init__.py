"""Aggregate functions on columns: the buffers of rows are merged into the state of their keys."""
