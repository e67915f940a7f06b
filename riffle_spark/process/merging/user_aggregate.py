"""Aggregate functions of users: their interface, how their states merge, and ``TopRows``, the function of ``top_k``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import pyarrow as pa

from riffle_spark.columns import one_array
from riffle_spark.errors import UserFunctionError
from riffle_spark.process.blocks.block import IndexArray
from riffle_spark.process.merging.merge_function import Columns, Groups, MergeFunction, are_valid
from riffle_spark.process.merging.merged_lists import build_lists, flatten_lists
from riffle_spark.process.merging.merged_picks import rank_values
from riffle_spark.process.types import spark_schemas
from riffle_spark.process.types.conform import call_user_function, conform_table
from riffle_spark.state.formats.arrow_casts import cast_column


@runtime_checkable
class UserAggregate(Protocol):
    """An aggregate function of your own, over Arrow tables.

    Pass an object with these members to ``riffle_spark.user_aggregate``, and the function that it returns to
    ``groupBy(...).agg(...)`` of a wrapped DataFrame. Each call has the rows of many groups. All methods must be
    deterministic, because a batch may run again. The object is pickled with the query.

    Example::

        class SumOfSquares:
            rows = "value double"
            state = "total double"
            result = "double"

            def init(self):
                return {"total": 0.0}

            def update(self, state, rows, groups):
                squares = pa.table({"total": rows["value"].to_numpy() ** 2})
                return self.merge(state, squares, groups)

            def merge(self, state, others, groups):
                added = np.bincount(groups, others["total"].to_numpy(), len(state))
                return pa.table({"total": state["total"].to_numpy() + added})

            def finish(self, state):
                return state["total"]

        sum_of_squares = riffle_spark.user_aggregate(SumOfSquares())
    """

    @property
    def rows(self) -> str:
        """The arguments of the function in DDL, a column for each."""
        ...

    @property
    def state(self) -> str:
        """The columns of a group's state in DDL."""
        ...

    @property
    def result(self) -> str:
        """The type of the result in DDL."""
        ...

    def init(self) -> Mapping[str, object]:
        """Return the state of a group without rows: a value for each state column."""
        ...

    def update(self, state: pa.Table, rows: pa.Table, groups: IndexArray) -> pa.Table:
        """Return the state of all groups after the rows are added.

        ``state`` has one row per group. ``groups`` holds, per row of ``rows``, the index of its group's row in
        ``state``. Return a table with the columns of ``state`` and the same order of groups.
        """
        ...

    def merge(self, state: pa.Table, others: pa.Table, groups: IndexArray) -> pa.Table:
        """Return the state of all groups merged with ``others``, for example when two sessions join.

        ``groups`` holds, per row of ``others``, the index of its group's row in ``state``.
        """
        ...

    def finish(self, state: pa.Table) -> pa.Array:
        """Return the result of each group."""
        ...


@dataclass(frozen=True, slots=True)
class MergedByUser(MergeFunction):
    """A user's aggregate function.

    A row's buffer is a struct of the function's arguments, and a group's state a struct of the declared state columns.
    """

    function: UserAggregate

    def state_types(self, buffers: Sequence[pa.DataType]) -> Sequence[pa.DataType]:
        """Return the declared state as a struct type; empty if the arguments cannot be cast to the declared rows."""
        declared = spark_schemas.schema_of_ddl(self.function.rows).types
        arguments = [field.type for field in buffers[0]] if pa.types.is_struct(buffers[0]) else []
        if len(arguments) != len(declared) or not all(map(_can_cast, arguments, declared)):
            return ()
        return [pa.struct(list(spark_schemas.schema_of_ddl(self.function.state)))]

    def fold(self, rows: Columns, old: Columns, groups: Groups) -> list[pa.Array]:
        """Call the user's ``update`` with the rows, and return the new state of each group."""
        state: object = self._state_or_initial(old[0])
        if len(rows[0]):
            state = self._call_method("update", state, self._cast_arguments(rows[0].flatten()), groups.codes)
        return [self._check_state(state, groups)]

    def merge(self, states: Columns, groups: Groups) -> list[pa.Array]:
        """Call the user's ``merge`` with the states, and return the merged state of each group."""
        has_state = are_valid(states[0])
        further_states = pa.Table.from_struct_array(states[0].filter(pa.array(has_state)))
        initial = self._state_or_initial(pa.nulls(groups.size, states[0].type))
        return [self._check_state(self._call_method("merge", initial, further_states, groups.codes[has_state]), groups)]

    def finish(self, state: Columns) -> list[pa.Array]:
        """Call the user's ``finish``, and return the result of each group."""
        schema = pa.schema([(spark_schemas.BARE, spark_schemas.type_of_ddl(self.function.result))])
        if not len(state[0]):
            return [pa.nulls(0, schema.types[0])]
        result = self._call_method("finish", self._state_or_initial(state[0]))
        if isinstance(result, pa.Array | pa.ChunkedArray):
            result = pa.table([result], schema.names)
        table = conform_table(result, schema, f"result of finish() of {self._name}", self._name)
        self._check_row_count(table, len(state[0]), "finish")
        return [one_array(table.column(0))]

    def aggregate_all_rows(self, columns: Sequence[pa.Array]) -> object:
        """Return the user's result for a single group that consists of all rows. ``columns`` are the arguments."""
        null = pa.nulls(1, pa.struct(list(spark_schemas.schema_of_ddl(self.function.state))))
        arguments = pa.StructArray.from_arrays(columns, list(map(str, range(len(columns)))))
        state = self.fold([arguments], [null], Groups(np.zeros(len(arguments), dtype=np.int64), 1))
        return self.finish(state)[0][0].as_py()

    @property
    def _name(self) -> str:
        """The name of the user's class, for errors."""
        return type(self.function).__name__

    def _cast_arguments(self, columns: Sequence[pa.Array]) -> pa.Table:
        """Return the arguments as a table of the declared ``rows``.

        Raises ``UserFunctionError`` if a value does not fit.
        """
        schema = spark_schemas.schema_of_ddl(self.function.rows)
        try:
            arrays = [cast_column(column, field.type) for column, field in zip(columns, schema, strict=True)]
        except pa.ArrowInvalid as error:
            raise UserFunctionError(
                f"An argument of {self._name} cannot be cast to its declared type: {error}",
                remedy=f"Cast it in the query, or change the declared rows {self.function.rows!r}.",
                where=self._name,
                id="RIFFLE-0186",
            ) from error
        return pa.table(arrays, schema=schema)

    def _state_or_initial(self, state: pa.Array) -> pa.Table:
        """Return the state of the groups as a table, with the user's initial state for null."""
        try:
            initial = pa.array([self._call_method("init")], state.type)
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise UserFunctionError(
                f"{self._name}.init returned a state that does not match {self.function.state!r}: {error}",
                remedy="Return a value for each declared state column.",
                where=self._name,
                id="RIFFLE-0700",
            ) from error
        places = np.where(are_valid(state), np.arange(1, len(state) + 1), 0)
        return pa.Table.from_struct_array(pa.concat_arrays([initial, state]).take(pa.array(places)))

    def _check_state(self, state: object, groups: Groups) -> pa.Array:
        """Return a table of state that a user's method returned as structs.

        Raises ``UserFunctionError`` if its columns or rows are not as declared.
        """
        schema = spark_schemas.schema_of_ddl(self.function.state)
        table = conform_table(state, schema, f"state of {self._name}", self._name)
        self._check_row_count(table, groups.size, "update or merge")
        return pa.StructArray.from_arrays([one_array(column) for column in table.columns], fields=list(schema))

    def _call_method(self, method: str, *arguments: object) -> object:
        """Return the result of a method of the user's object. Raises ``UserFunctionError`` if the method raises."""
        return call_user_function(getattr(self.function, method), arguments, self._name)

    def _check_row_count(self, table: pa.Table, group_count: int, method: str) -> None:
        """Raise ``UserFunctionError`` if a table that a user's method returned does not have one row per group."""
        if table.num_rows != group_count:
            # Cause: The method left out groups without rows in this call, or returned a group twice.
            raise UserFunctionError(
                f"{self._name}.{method} returned {table.num_rows} rows for {group_count} groups.",
                remedy="Return one row per group, in the order of the given state.",
                where=self._name,
                id="RIFFLE-0187",
            )


@dataclass(frozen=True, slots=True)
class TopRows:
    """A ``UserAggregate`` that keeps the greatest rows of each group as structs.

    Rows are ordered by their first column, then the next. Nulls are smallest.
    """

    count: int
    rows: str

    @property
    def state(self) -> str:
        """The DDL of the state: a list of the rows, greatest first."""
        return f"top {self.result}"

    @property
    def result(self) -> str:
        """The DDL of the result: a list of the rows."""
        return f"array<struct<{self.rows}>>"

    def init(self) -> Mapping[str, object]:
        """Return the state of a new group: an empty list."""
        return {"top": []}

    def update(self, state: pa.Table, rows: pa.Table, groups: IndexArray) -> pa.Table:
        """Return the greatest of each group's old and new rows."""
        return self._keep_greatest(state, one_array(pa.chunked_array(rows.to_struct_array())), groups)

    def merge(self, state: pa.Table, others: pa.Table, groups: IndexArray) -> pa.Table:
        """Return the greatest rows of all states of each group."""
        owners, rows = flatten_lists(one_array(others["top"]))
        return self._keep_greatest(state, rows, groups[owners])

    def finish(self, state: pa.Table) -> pa.Array:
        """Return the list of rows of each group."""
        return one_array(state["top"])

    def _keep_greatest(self, state: pa.Table, rows: pa.Array, groups: IndexArray) -> pa.Table:
        """Return the state with the greatest ``count`` of each group's stored rows and ``rows``."""
        old_owners, old_rows = flatten_lists(one_array(state["top"]))
        owners = np.concatenate([old_owners, groups])
        rows = pa.concat_arrays([old_rows, cast_column(rows, old_rows.type)])
        order = np.lexsort((-rank_values(rows), owners))
        place = np.arange(len(order)) - np.searchsorted(owners[order], owners[order])
        greatest = order[place < self.count]
        lists = build_lists(owners[greatest], rows.take(pa.array(greatest)), Groups(owners, len(state)), self.count)
        return pa.table({"top": lists})


def _can_cast(type: pa.DataType, declared: pa.DataType) -> bool:
    try:
        cast_column(pa.nulls(0, type), declared)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return False
    return True
