"""Classes and plan nodes of Spark's JVM are looked up by name, because versions of Spark have them in other places."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from riffle_spark.spark.compat.java import checked, first_class

pytestmark = [pytest.mark.spark, pytest.mark.newer_spark]


def test_the_first_class_that_exists_is_found(spark: SparkSession) -> None:
    """Of several names of a class, the first one that this JVM knows is found. Without any, it raises an error."""
    jvm = spark.sparkContext._jvm
    names = ("org.apache.spark.riffle.NoSuchClass", "java.util.UUID", "java.util.HashMap")
    assert str(first_class(jvm, names).getName()) == "java.util.UUID"
    assert str(first_class(jvm, names[::2]).getName()) == "java.util.HashMap"
    with pytest.raises(Exception, match="NoSuchClass"):
        first_class(jvm, names[:1])


def test_a_plan_of_another_form_is_refused_by_the_name_of_its_node(spark: SparkSession) -> None:
    """A node of another class than expected is refused with the name of its class, so that Spark plans the batch."""
    plan = spark.range(1)._jdf.queryExecution().analyzed()
    assert checked(plan, "Range") is plan
    with pytest.raises(LookupError, match="the plan is a Range"):
        checked(plan, "Project")
