"""The computations of a query's stages on a slot."""
