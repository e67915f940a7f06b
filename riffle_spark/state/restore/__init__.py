"""Bringing copies to a head: reading parts, restoring and following."""
