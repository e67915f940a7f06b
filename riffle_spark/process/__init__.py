"""What users compute with. Knows Arrow tables of rows and state. Does not know Spark, storage or where it runs."""
