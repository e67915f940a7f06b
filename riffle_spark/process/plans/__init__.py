"""Analysed plans of Spark as values, and the stages that are read from them. Needs no Spark."""
