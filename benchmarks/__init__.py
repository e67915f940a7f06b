"""Measurements side by side with what a user would pick instead; ./run bench NAME."""
