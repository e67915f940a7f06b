"""How the buffers of Spark's aggregate functions merge, key by key, as columns."""
