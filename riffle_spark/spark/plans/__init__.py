"""Read, cut and rebuild the plans of wrapped queries in Spark's JVM."""
