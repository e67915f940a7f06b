"""riffle_spark."""
