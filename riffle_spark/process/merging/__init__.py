"""How the buffers of aggregate functions merge, key by key, as columns."""
