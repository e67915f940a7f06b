"""Spark's types and values between a user, Arrow and Spark's texts."""
