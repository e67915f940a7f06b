"""Wrapped queries: what they were told, how they start, and how they look while they run."""
