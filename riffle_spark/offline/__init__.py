"""Commands on a stopped query, and reading a root."""
