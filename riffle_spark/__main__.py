"""``python -m riffle_spark`` is the command ``riffle``."""

from riffle_spark.console.process import run

run()
