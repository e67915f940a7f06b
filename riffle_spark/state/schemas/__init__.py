"""The columns of a store, and how its rows lie in a local copy."""
