"""The sinks of wrapped queries, chosen from the settings of their writers."""
