"""Computations that are called key by key: the state, timers and calls of a ``StatefulProcessor``."""
