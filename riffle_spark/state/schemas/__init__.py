"""The columns of a store, and how its rows are stored in parts."""
