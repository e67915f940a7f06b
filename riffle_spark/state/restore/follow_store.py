"""The copies of one store that follow the log. Knows what a copy of its kind is made of. Does not know which are wanted."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing
from itertools import takewhile

import pyarrow as pa

from riffle_spark.errors import CorruptStateError, OutOfDate
from riffle_spark.state.copies.copy import Copy
from riffle_spark.state.copies.disk import DamagedCopy
from riffle_spark.state.copies.folder import Folder
from riffle_spark.state.copies.stack import Stack, StackedPart
from riffle_spark.state.log.manifest import EMPTY_HEAD, Link
from riffle_spark.state.restore.copy_progress import CopyPlanner, CopyProgress
from riffle_spark.state.restore.fetch import WantedSnapshot, kept_parts
from riffle_spark.state.restore.incoming import IncomingSnapshots
from riffle_spark.state.restore.prefetch import Budget, prefetched
from riffle_spark.state.restore.reader import Reader, span_bytes
from riffle_spark.state.restore.stack_parts import StackParts
from riffle_spark.state.restore.supply import rows_of
from riffle_spark.state.schemas.copy_rows import CopyRows
from riffle_spark.state.schemas.plain_columns import PlainColumns
from riffle_spark.state.schemas.variables import VariableColumns

__all__ = ["RANGE_BYTES", "ColumnsFollower", "VariablesFollower"]

RANGE_BYTES = 8 << 20
"""A delta is got in one get unless more than this lies between two parts."""
_BYTES_AHEAD = 32 << 20
_AT_ONCE = 8


class ColumnsFollower:
    """Brings one store's copies after the log: what a link or a snapshot names becomes part of a stack."""

    def __init__(
        self, schema: PlainColumns, folder: Folder, reader: Reader, incoming: IncomingSnapshots, planner: CopyPlanner,
        budget: Budget,
    ) -> None:  # fmt: skip
        self._folder = folder
        self._reader = reader
        self._incoming = incoming
        self._planner = planner
        self._budget = budget
        self._stacks = folder.stacks(schema.store)
        self._parts = StackParts(folder, schema)

    def advance(self, those: Sequence[CopyProgress]) -> int:
        """Add the links that these copies lack, as far as the budget goes; return how many."""
        owed = {link: one for one in those for link in one.links}
        coming = self._at_hand(owed)
        runs = iter(self._reader.runs(owed.keys() - coming.keys(), RANGE_BYTES))
        with closing(
            prefetched(self._reader.fetched, self._granted(runs), span_bytes, _BYTES_AHEAD, _AT_ONCE)
        ) as getting:
            for run, data in getting:
                coming |= self._kept(run, data, owed)
        return sum(self._add(one, coming) for one in those)

    def _at_hand(self, owed: Mapping[Link, CopyProgress]) -> dict[Link, StackedPart]:
        """Return the parts of deltas that this member sealed itself and still has."""
        found = self._parts.sealed(owed)
        if not found or not self._budget.allows():
            return {}
        self._reader.totals.local_parts += len(found)
        return found

    def _granted(self, runs: Iterator[list[Link]]) -> Iterator[list[Link]]:
        for run in runs:
            if not self._budget.grant(span_bytes(run)):
                return
            yield run

    def _kept(
        self, run: list[Link], getting: Future[dict[Link, memoryview | CorruptStateError]],
        owed: Mapping[Link, CopyProgress],
    ) -> dict[Link, StackedPart]:  # fmt: skip
        try:
            found: Mapping[Link, memoryview | Exception] = getting.result()
            kept = kept_parts(self._folder, {k: data for k, data in found.items() if isinstance(data, memoryview)})
        except Exception as trouble:  # noqa: BLE001 - the driver is told and orders it again
            found, kept = dict.fromkeys(run, trouble), {}
        for link, data in found.items():
            if isinstance(data, Exception):
                owed[link].error = owed[link].error or str(data)
        return kept

    def _add(self, one: CopyProgress, coming: Mapping[Link, StackedPart]) -> int:
        """Put the next links of a copy on its stack, as far as they have come; return how many."""
        links = list(takewhile(coming.__contains__, one.links))
        if not links:
            return 0
        try:
            stack = self._switched(one, links, coming)
            self._parts.merge_if_high(one.address[1], stack)
        except OutOfDate as trouble:
            self._planner.look_again(one, trouble)
            return 0
        except DamagedCopy as trouble:
            self._planner.give_up(one, trouble)
        except Exception as trouble:  # noqa: BLE001 - as above
            one.error = str(trouble)
            return 0
        one.at, one.links = links[-1].head, one.links[len(links) :]
        one.fetched += sum(link.length for link in links)
        return len(links)

    def _switched(self, one: CopyProgress, links: Sequence[Link], coming: Mapping[Link, StackedPart]) -> Stack:
        key_group = one.address[1]
        before = self._stacks.read(key_group)
        if before is None or before.head != one.at:
            raise OutOfDate("the copy went while it followed", remedy="nothing: the next piece restores it")
        stack = before.extended(links[-1].head, [coming[link] for link in links])
        if not self._stacks.switch(key_group, before, stack):
            raise OutOfDate("another process moved the copy", remedy="nothing: the next piece looks again")
        return stack

    def begin(self, one: CopyProgress) -> None:
        """Switch in a stack that stands at the entry's base. Raises what it finds."""
        key_group, snapshot = one.address[1], one.entry.snapshot
        parts: tuple[StackedPart, ...] = ()
        if snapshot is not None:
            wanted = WantedSnapshot(*one.address, snapshot, self._stacks.fresh(key_group))
            self._incoming.move(one.address, snapshot, wanted.path)
            parts = (self._parts.base(wanted),)
        self._stacks.switch(key_group, self._stacks.read(key_group), Stack(one.entry.base, parts))


class VariablesFollower:
    """Brings one store's copies after the log: links are folded, a snapshot is loaded."""

    def __init__(
        self, schema: VariableColumns, folder: Folder, reader: Reader, incoming: IncomingSnapshots,
        planner: CopyPlanner, budget: Budget,
    ) -> None:  # fmt: skip
        self._schema = schema
        self._folder = folder
        self._reader = reader
        self._incoming = incoming
        self._planner = planner
        self._budget = budget
        self._folds = 0

    def advance(self, those: Sequence[CopyProgress]) -> int:
        """Fold the links that these copies lack, as far as the budget goes; return how many."""
        before = self._folds
        owed = {link: one for one in those for link in one.links}
        runs = iter(self._reader.runs(owed, RANGE_BYTES))
        reading = prefetched(self._reader.read, self._granted(runs), span_bytes, _BYTES_AHEAD, _AT_ONCE)
        with closing(reading):
            for run, tables in reading:
                self._fold_run(run, tables, owed)
        return self._folds - before

    def _granted(self, runs: Iterator[list[Link]]) -> Iterator[list[Link]]:
        for run in runs:
            allowed = self._budget.allows() if self._reader.is_local(run) else self._budget.grant(span_bytes(run))
            if not allowed:
                return
            yield run

    def _fold_run(
        self, run: list[Link], reading: Future[dict[Link, pa.Table | CorruptStateError]],
        owed: Mapping[Link, CopyProgress],
    ) -> None:  # fmt: skip
        try:
            found = reading.result()
        except Exception as trouble:  # noqa: BLE001 - the driver is told and orders it again
            found = dict.fromkeys(run, trouble)
        tables: dict[Link, pa.Table] = {}
        for link, table in found.items():
            if isinstance(table, Exception):
                owed[link].error = owed[link].error or str(table)
            else:
                tables[link] = table
        try:
            encoded = rows_of(self._schema, tables)
        except Exception as trouble:  # noqa: BLE001 - as above
            encoded = {}
            for link in tables:
                owed[link].error = owed[link].error or str(trouble)
        for link, rows in encoded.items():
            self._fold(owed[link], link, rows)

    def _fold(self, one: CopyProgress, link: Link, rows: CopyRows) -> None:
        if one.error is not None or one.links[:1] != (link,):
            return
        try:
            with self._opened(one) as copy:
                copy.fold(one.at or EMPTY_HEAD, link.head, rows, later=[later.head for later in one.links[1:]])
        except OutOfDate as trouble:
            self._planner.look_again(one, trouble)
        except DamagedCopy as trouble:
            self._planner.give_up(one, trouble)
        except Exception as trouble:  # noqa: BLE001 - as above
            one.error = str(trouble)
        else:
            one.at, one.links, one.fetched = link.head, one.links[1:], one.fetched + link.length
            self._folds += 1

    def _opened(self, one: CopyProgress) -> Copy:
        current = self._folder.current(*one.address)
        if current is None:
            raise OutOfDate("the copy went while it followed", remedy="nothing: the next piece restores it")
        return Copy.of_layout(current, self._schema.copy_layout)

    def begin(self, one: CopyProgress) -> None:
        """Switch a new copy in that stands at the entry's base. Raises what it finds."""
        snapshot = one.entry.snapshot
        fresh = self._folder.fresh(*one.address)
        try:
            with Copy(fresh, new=True, layout=self._schema.copy_layout) as copy:
                if snapshot is not None:
                    copy.load(one.entry.base, self._schema.encode(self._incoming.table(one.address, snapshot)))
            self._folder.switch(*one.address, fresh)
        except BaseException:
            self._folder.discard(one.address[0], fresh)
            raise
