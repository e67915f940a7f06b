"""Byte formats of parts, keys and values."""
