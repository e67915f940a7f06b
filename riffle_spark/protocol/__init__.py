"""One micro-batch as steps over ports. Has no Spark, clock, chance or threads of its own; the simulation runs exactly
this.
"""
