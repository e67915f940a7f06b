"""The messages between driver and executors. Plain data."""
