"""What users hold before a query runs: frames, groups and writers that are Spark's and ours."""
