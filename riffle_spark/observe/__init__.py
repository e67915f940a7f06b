"""The metrics, status and exporters of a query, for operators and other programs. Imports no PySpark."""
