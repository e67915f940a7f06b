"""Computations that see one key at a time: the state, timers and calls of a ``StatefulProcessor``."""
