"""The checks of `riffle doctor` on a machine, a store and a configuration."""
