"""Pretended clusters: rounds of assignment over a scenario, and its figures."""
