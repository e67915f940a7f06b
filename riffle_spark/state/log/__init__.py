"""The log of a query: records, manifests, and names of objects."""
