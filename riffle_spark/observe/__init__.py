"""What operators and other programs see of a query: metrics, status, exporters. Imports no PySpark."""
