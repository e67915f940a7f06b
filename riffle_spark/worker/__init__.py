"""The work of executors: slots, censuses and pieces of upkeep."""
