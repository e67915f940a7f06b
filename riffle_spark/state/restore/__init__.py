"""Advance copies: read parts, restore, follow the log."""
