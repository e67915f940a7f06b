"""The assignor. It is pure: it uses no clock, random numbers, logging, threads or environment."""
