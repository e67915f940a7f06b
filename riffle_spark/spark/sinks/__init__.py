"""Where the results of wrapped queries go: what a writer was told, and what takes each batch's rows."""
