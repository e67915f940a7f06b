"""Background work: copies that follow the log, snapshots, retention."""
