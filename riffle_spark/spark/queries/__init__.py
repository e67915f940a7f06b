"""Start wrapped queries, compare them with their stored state, and report their progress."""
