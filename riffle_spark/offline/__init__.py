"""What runs while the query is stopped: recovery, and another dispatch."""
