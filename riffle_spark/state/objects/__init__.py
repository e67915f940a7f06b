"""Object stores: the interface, and one module per store."""
