"""Move stopped Spark queries to riffle with the state in their checkpoints."""
