"""PySpark's ``StatefulProcessor``, its handle, states and forms."""
