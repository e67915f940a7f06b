"""Users' computations on Arrow tables of rows and state. Nothing here needs Spark or storage."""
