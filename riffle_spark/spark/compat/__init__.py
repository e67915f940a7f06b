"""The differences between the lines of Spark. Each line has a module, and all modules define the same names.

No other code depends on Spark's version.
"""

from typing import TYPE_CHECKING

import pyspark

if TYPE_CHECKING or not pyspark.__version__.startswith("3."):
    from riffle_spark.spark.compat.spark4 import *  # noqa: F403 - the names are listed there
else:
    from riffle_spark.spark.compat.spark35 import *  # noqa: F403
