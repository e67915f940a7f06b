"""What `riffle doctor` finds out about a machine, a store and a configuration, and what it says about it."""
