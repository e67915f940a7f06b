"""The steps of one micro-batch, in the order of ``driver``."""
