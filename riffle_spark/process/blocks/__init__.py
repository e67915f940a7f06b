"""Computations that see a key-group's rows at once: aggregates and Arrow functions."""
