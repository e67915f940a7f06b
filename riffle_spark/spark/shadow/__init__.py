"""Run a query on Spark's own state and on riffle over the same batches, and compare what their sinks receive."""
