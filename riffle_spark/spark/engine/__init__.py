"""The protocol's ports on PySpark: rows, executors, the JVM."""

from riffle_spark.state.copies.mapped_bytes import reserve_no_addresses

# The modules of this package are what a Python worker imports first, and some of what they import makes Arrow's values.
reserve_no_addresses()
