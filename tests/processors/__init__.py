"""StatefulProcessors of many kinds with the batches to try them on: the same for Spark and for riffle.

Import it as ``tests.processors`` with the checkout on the path.
"""
