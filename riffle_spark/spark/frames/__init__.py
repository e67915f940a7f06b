"""Wrapped frames, grouped data and writers with the interface of Spark's own."""
