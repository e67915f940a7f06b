"""Keyed state: objects, the log, byte formats, local copies and how they are restored."""
