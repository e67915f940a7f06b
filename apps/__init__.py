"""Example jobs and the demo that runs one of them against real servers."""
