"""Hold what differs between the lines of Spark. One module per line defines the same names.

No other code asks for Spark's version.
"""

from typing import TYPE_CHECKING

import pyspark

if TYPE_CHECKING or not pyspark.__version__.startswith("3."):
    from riffle_spark.spark.compat.spark4 import *  # noqa: F403 - the names are listed there
else:
    from riffle_spark.spark.compat.spark35 import *  # noqa: F403
