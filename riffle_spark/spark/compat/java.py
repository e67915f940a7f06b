"""Look up Java classes and convert Python lists to Scala, in few Py4J calls."""

import logging
from functools import lru_cache
from typing import Any

MODULE = "MODULE$"
"""The field that holds the instance of a Scala object."""
_CALLS_FOR_MANY = 3
_MOST_AT_ONCE = 10
"""The number of items that Java's ``List.of`` takes."""
_logger = logging.getLogger("riffle_spark")


def looked_up(jvm: Any, name: str, member: str = "") -> Any:
    """Return a class of the JVM by its full name, or its static ``member``. Each is looked up once per JVM.

    Py4J makes a call to the JVM for each part of a dotted name, and Spark then searches its jars.
    """
    cache = cache_of(jvm)
    if (name, member) not in cache:
        java_class = getattr(jvm, name)
        cache[name, member] = getattr(java_class, member) if member else java_class
    return cache[name, member]


def first_class(jvm: Any, names: tuple[str, ...]) -> Any:
    """Return the first of these classes that exists, by full name. Raise the JVM's error if none does.

    It is looked up once per JVM, because a Py4J error costs 80 calls.
    """
    cache = cache_of(jvm)
    if ("class", names) not in cache:
        for_name = looked_up(jvm, "java.lang.Class", "forName")
        for name in names[:-1]:
            try:
                cache["class", names] = for_name(name)
                break
            except Exception as error:  # noqa: BLE001 - Py4J raises what the JVM raises
                _logger.debug("Class %s does not exist: %s", name, error)
        else:
            cache["class", names] = for_name(names[-1])
    return cache["class", names]


@lru_cache(maxsize=1)
def cache_of(jvm: Any) -> dict[object, Any]:  # noqa: ARG001 - the key of the cache
    """Return the cache of a JVM's looked-up classes and members. Callers may add entries."""
    return {}


def parameter_count(jvm: Any, class_name: str) -> int:
    """Return how many parameters the constructor of a class has. It differs by Spark version."""
    cache = cache_of(jvm)
    if ("parameters", class_name) not in cache:
        java_class = looked_up(jvm, "java.lang.Class", "forName")(class_name)
        cache["parameters", class_name] = java_class.getConstructors()[0].getParameterCount()
    return int(cache["parameters", class_name])


def items(sequence: Any) -> list[Any]:
    """Return the items of a Scala sequence."""
    return [sequence.apply(index) for index in range(sequence.size())]


def kind(node: Any) -> str:
    """Return the name of a plan node's class."""
    return str(node.getClass().getSimpleName())


def checked(node: Any, name: str) -> Any:
    """Return a plan node. Raise ``LookupError`` unless ``name`` is its class."""
    if kind(node) != name:
        raise LookupError(f"the plan is a {kind(node)}")
    return node


def nil(jvm: Any) -> Any:
    """Return Scala's empty list."""
    return looked_up(jvm, "scala.collection.immutable.Nil$", MODULE)


def scala_seq(jvm: Any, items: list[Any]) -> Any:
    """Return a Scala Seq of ``items``. No item may be ``None``.

    Many items are passed in fewer calls than there are items.
    """
    if len(items) <= _CALLS_FOR_MANY:
        sequence = nil(jvm)
        for item in reversed(items):
            sequence = looked_up(jvm, "scala.collection.immutable.$colon$colon")(item, sequence)
        return sequence
    list_of = looked_up(jvm, "java.util.List", "of")
    java_list = list_of(*items[:_MOST_AT_ONCE])
    if len(items) > _MOST_AT_ONCE:
        java_list = looked_up(jvm, "java.util.ArrayList")(java_list)
        for start in range(_MOST_AT_ONCE, len(items), _MOST_AT_ONCE):
            java_list.addAll(list_of(*items[start : start + _MOST_AT_ONCE]))
    return looked_up(jvm, "org.apache.spark.api.python.PythonUtils", "toSeq")(java_list)


def opened_field(jvm: Any, class_name: str, field_name: str) -> Any:
    """Return a private field of a class, made readable and writable."""
    cache = cache_of(jvm)
    if ("field", class_name, field_name) not in cache:
        java_class = looked_up(jvm, "java.lang.Class", "forName")(class_name)
        field = java_class.getDeclaredField(field_name)
        field.setAccessible(True)
        cache["field", class_name, field_name] = field
    return cache["field", class_name, field_name]
