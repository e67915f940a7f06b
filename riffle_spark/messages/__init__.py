"""What driver and executors say to each other. Plain data."""
