"""The state below a root as Arrow tables, read from the object store alone. Imports no PySpark."""
