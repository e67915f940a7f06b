"""The ports of the protocol on PySpark: the only folder that imports it."""
