"""Simulated clusters: rounds of assignment for a scenario, and their figures."""
