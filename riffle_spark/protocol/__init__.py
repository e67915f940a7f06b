"""The steps of one micro-batch, on top of ports.

The package has no Spark, clock, random numbers or threads of its own. So simulations run the same code.
"""
