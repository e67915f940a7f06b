"""Spark's analysed plans as values, and what a wrapped query decides by them. Nothing here needs Spark."""
