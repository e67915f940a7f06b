"""The protocol's ports on PySpark: rows, executors, the JVM."""
