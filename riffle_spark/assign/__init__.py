"""The assignor. Pure: no clock, chance, logging, threads or environment."""
