"""What users hold of a wrapped query: frames, groups, and what is told to them."""
