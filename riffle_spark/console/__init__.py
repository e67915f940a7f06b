"""The command line `riffle`."""
