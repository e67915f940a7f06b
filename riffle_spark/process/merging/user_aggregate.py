"""Aggregate functions of users' own: what one declares and does, and how it merges as Spark's do; one that everybody
may have. Knows Arrow shapes. Does not know Spark.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import pyarrow as pa

from riffle_spark.columns import one_array
from riffle_spark.errors import UserFunctionError
from riffle_spark.process.blocks.block import IndexArray
from riffle_spark.process.merging.merge_function import Columns, Groups, MergeFunction, are_valid
from riffle_spark.process.merging.merged_lists import lists_of, owned
from riffle_spark.process.merging.merged_picks import ranks
from riffle_spark.process.types import spark_schemas
from riffle_spark.process.types.conform import called, conform
from riffle_spark.state.formats.arrow_casts import cast_column

__all__ = ["MergedByUser", "TopRows", "UserAggregate"]


@runtime_checkable
class UserAggregate(Protocol):
    """An aggregate function of a user's own, over Arrow: each call has the rows of many groups. Give it to
    ``riffle_spark.user_aggregate``, and what that returns to ``groupBy(...).agg(...)`` of a wrapped frame. All that it
    does has to be the same each time, since a batch may run again. It is pickled with the query.
    """

    @property
    def rows(self) -> str:
        """What it is given of each row, in DDL: a column for each of its arguments."""
        ...

    @property
    def state(self) -> str:
        """What is kept of a group, in DDL."""
        ...

    @property
    def result(self) -> str:
        """The type of what it answers, in DDL."""
        ...

    def init(self) -> Mapping[str, object]:
        """Return the state of a group without rows: a value for each column."""
        ...

    def update(self, state: pa.Table, rows: pa.Table, groups: IndexArray) -> pa.Table:
        """Return the state of all groups once these rows are in it. ``state`` has one row a group; ``groups`` says for
        each of the rows to which row of the state it belongs. What is returned has the state's columns and order.
        """
        ...

    def merge(self, state: pa.Table, others: pa.Table, groups: IndexArray) -> pa.Table:
        """Return the state of all groups once other states are in it, as sessions that become one have it; ``groups``
        says for each of the others to which row of ``state`` it belongs.
        """
        ...

    def finish(self, state: pa.Table) -> pa.Array:
        """Return the result of each group."""
        ...


@dataclass(frozen=True, slots=True)
class MergedByUser(MergeFunction):
    """A user's function: a row's buffer is a struct of its arguments, and what is kept of a group one of its state."""

    told: UserAggregate

    def state(self, buffers: Sequence[pa.DataType]) -> Sequence[pa.DataType]:
        """Keep the declared state, where the arguments can become the declared rows."""
        declared = self._schema(self.told.rows).types
        given = [field.type for field in buffers[0]] if pa.types.is_struct(buffers[0]) else []
        if len(given) != len(declared) or not all(map(_can_become, given, declared)):
            return ()
        return [pa.struct(list(self._schema(self.told.state)))]

    def fold(self, rows: Columns, old: Columns, groups: Groups) -> list[pa.Array]:
        """Let the function take the rows in."""
        known = self._known(old[0])
        table = self._given(rows[0].flatten()) if len(rows[0]) else None
        return [self._kept(known if table is None else self._called("update", known, table, groups.codes), groups)]

    def united(self, kept: Columns, groups: Groups) -> list[pa.Array]:
        """Let the function merge what it made."""
        known = are_valid(kept[0])
        others = pa.Table.from_struct_array(kept[0].filter(pa.array(known)))
        nothing = self._known(pa.nulls(groups.size, kept[0].type))
        return [self._kept(self._called("merge", nothing, others, groups.codes[known]), groups)]

    def finish(self, state: Columns) -> list[pa.Array]:
        """Return what the function answers."""
        wanted = pa.schema([(spark_schemas.BARE, spark_schemas.type_of_ddl(self.told.result))])
        if not len(state[0]):
            return [pa.nulls(0, wanted.types[0])]
        returned = self._called("finish", self._known(state[0]))
        told = pa.table([returned], wanted.names) if isinstance(returned, pa.Array | pa.ChunkedArray) else returned
        table = conform(told, wanted, self._what("result of finish()"), self._name)
        self._check_rows(table, len(state[0]), "finish")
        return [one_array(table.column(0))]

    def whole(self, columns: Sequence[pa.Array]) -> object:
        """Return the result of one group that has all of these rows."""
        nothing = pa.nulls(1, pa.struct(list(self._schema(self.told.state))))
        given = pa.StructArray.from_arrays(columns, list(map(str, range(len(columns)))))
        state = self.fold([given], [nothing], Groups(np.zeros(len(given), dtype=np.int64), 1))
        return self.finish(state)[0][0].as_py()

    @property
    def _name(self) -> str:
        return type(self.told).__name__

    def _what(self, what: str) -> str:
        return f"{what} of {self._name}"

    @staticmethod
    def _schema(text: str) -> pa.Schema:
        return spark_schemas.schema_of_ddl(text)

    def _given(self, columns: Sequence[pa.Array]) -> pa.Table:
        """Return arguments as the rows that are declared."""
        schema = self._schema(self.told.rows)
        try:
            told = [cast_column(column, field.type) for column, field in zip(columns, schema, strict=True)]
        except pa.ArrowInvalid as error:
            raise UserFunctionError(
                f"An argument of {self._name} cannot become what its rows are declared to be: {error}",
                remedy=f"Cast it where {self._name} is called, or declare other rows than {self.told.rows!r}.",
                where=self._name,
                id="RIFFLE-0186",
            ) from error
        return pa.table(told, schema=schema)

    def _known(self, old: pa.Array) -> pa.Table:
        """Return the state of groups, those of which nothing is known as they begin."""
        try:
            first = pa.array([self._called("init")], old.type)
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise self._misshapen("init", f"what is not the declared state: {error}") from error
        places = np.where(are_valid(old), np.arange(1, len(old) + 1), 0)
        return pa.Table.from_struct_array(pa.concat_arrays([first, old]).take(pa.array(places)))

    def _kept(self, returned: object, groups: Groups) -> pa.Array:
        schema = self._schema(self.told.state)
        table = conform(returned, schema, self._what("state"), self._name)
        self._check_rows(table, groups.size, "update or merge")
        return pa.StructArray.from_arrays([one_array(column) for column in table.columns], fields=list(schema))

    def _called(self, method: str, *arguments: object) -> object:
        return called(getattr(self.told, method), arguments, self._name)

    def _check_rows(self, table: pa.Table, wanted: int, method: str) -> None:
        if table.num_rows != wanted:
            raise self._misshapen(method, f"{table.num_rows} rows for {wanted} groups")

    def _misshapen(self, method: str, what: str) -> UserFunctionError:
        remedy = "Return one row a group, in the order of the state that the method was given."
        return UserFunctionError(
            f"{self._name}.{method} returned {what}", remedy=remedy, where=self._name, id="RIFFLE-0187"
        )


@dataclass(frozen=True, slots=True)
class TopRows:
    """A ``UserAggregate``: the greatest rows of each group, as structs, by their first column, then the next; a null is
    less than all else.
    """

    most: int
    rows: str

    @property
    def state(self) -> str:
        """The rows, the greatest first."""
        return f"top {self.result}"

    @property
    def result(self) -> str:
        """The rows as a list."""
        return f"array<struct<{self.rows}>>"

    def init(self) -> Mapping[str, object]:
        """Begin without any."""
        return {"top": []}

    def update(self, state: pa.Table, rows: pa.Table, groups: IndexArray) -> pa.Table:
        """Keep those of the rows that are great enough."""
        return self._of(state, one_array(pa.chunked_array(rows.to_struct_array())), groups)

    def merge(self, state: pa.Table, others: pa.Table, groups: IndexArray) -> pa.Table:
        """Keep those of the others' rows that are great enough."""
        owners, rows = owned(one_array(others["top"]))
        return self._of(state, rows, groups[owners])

    def finish(self, state: pa.Table) -> pa.Array:
        """Return them."""
        return one_array(state["top"])

    def _of(self, state: pa.Table, rows: pa.Array, groups: IndexArray) -> pa.Table:
        owners, kept = owned(one_array(state["top"]))
        owners, rows = np.concatenate([owners, groups]), pa.concat_arrays([kept, cast_column(rows, kept.type)])
        order = np.lexsort((-ranks(rows), owners))
        place = np.arange(len(order)) - np.searchsorted(owners[order], owners[order])
        best = order[place < self.most]
        lists = lists_of(owners[best], rows.take(pa.array(best)), Groups(owners, len(state)), self.most)
        return pa.table({"top": lists})


def _can_become(given: pa.DataType, declared: pa.DataType) -> bool:
    try:
        cast_column(pa.nulls(0, given), declared)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return False
    return True
