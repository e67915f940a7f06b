"""Work beside the batches: following copies, snapshots, retention."""
