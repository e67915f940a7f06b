"""What runs on executors: slots, censuses and pieces of upkeep."""
