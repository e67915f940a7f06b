"""Publish what a driver knows: metrics, and the exporters that send them somewhere. Needs no Spark."""
