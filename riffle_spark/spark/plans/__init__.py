"""Spark's plans read and written: where a query is cut, what its stages are, and what is refused."""
