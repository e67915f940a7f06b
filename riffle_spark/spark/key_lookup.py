"""Look up the member that processes a key."""

from riffle_spark.errors import ConfigError
from riffle_spark.protocol.operator import Operator
from riffle_spark.protocol.ownership.placement import Placement
from riffle_spark.protocol.ownership.readiness import KeyPlace
from riffle_spark.spark.job_operators import JobOperators
from riffle_spark.unknown_names import check_known


class KeyLookup:
    """Finds the key-group of a key, and its owner."""

    def __init__(self, placement: Placement, operators: JobOperators) -> None:
        self._placement = placement
        self._operators = operators

    def where(self, key: object, store: str | None) -> KeyPlace:
        """Return where a key of a store is processed.

        Raise ``ConfigError`` for an invalid key, or a key without an owner.
        """
        placement = self._placement
        number = self._number_of(key, store)
        place = None if number is None else placement.place_of(placement.task_of(number, store))
        if place is None:
            # Cause: Owners are chosen when the first batch runs.
            raise ConfigError(
                f"Key {key!r} has no owner yet.", remedy="Retry after the query's first batch.", id="RIFFLE-0314"
            )
        return place

    def _number_of(self, key: object, store: str | None) -> int | None:
        """Return the key-group or shard of a key, or ``None`` before the first batch."""
        if self._placement.shards is not None:
            return self._placement.shards.number_of(key)
        operator = self._operator_of(store)
        return None if operator is None else operator.key_group_of(key, self._placement.settings.key_groups)

    def _operator_of(self, store: str | None) -> Operator | None:
        """Return the operator of a store, ``None`` before the first batch.

        If no store is named, all operators must have the same key. Raise ``ConfigError`` otherwise, and for an unknown
        store.
        """
        operators = self._operators.current
        names = [operator.store for operator in operators]
        if store is None and len({operator.schema.key for operator in operators}) > 1:
            raise ConfigError(
                "The query's stores have different keys.", remedy=f"Name one of {', '.join(names)}.", id="RIFFLE-0315"
            )
        check_known("store", [] if store is None else [store], names, source="where(key, store)")
        return next((operator for operator in operators if store in (None, operator.store)), None)
