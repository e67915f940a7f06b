"""Check the invariants I1 to I5 on a simulated query. A failure names the violated invariant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path

import pyarrow as pa

from riffle_spark import keygroups
from riffle_spark.protocol.batch.stored_requests import without_key_groups
from riffle_spark.state.copies.disk import DamagedCopy
from riffle_spark.state.copies.folder import Folder
from riffle_spark.state.copies.stack import Stack
from riffle_spark.state.formats import part_codec
from riffle_spark.state.formats.blocks import checksum_of_block
from riffle_spark.state.formats.due_times import first_ms_of, in_milliseconds
from riffle_spark.state.log import paths
from riffle_spark.state.log.log import Log
from riffle_spark.state.log.manifest import Address, Entry, Head, Link, Manifest
from riffle_spark.state.log.record import Record, decode, digest
from riffle_spark.state.log.recorded_savepoints import RecordedSavepoint
from riffle_spark.state.log.savepoints import savepoint_objects
from riffle_spark.state.objects.encryption import Keys, Place
from riffle_spark.state.objects.memory import MemoryStore
from riffle_spark.state.schemas.store_schema import StoreSchema
from riffle_spark.worker.member_folders import keys_of
from tests.kit.simulated.world import World, held_by_key
from tests.kit.state.local_copies import checksum_on_disk, rows_of_stack

Contents = Mapping[int, Mapping[str, Mapping[object, tuple[object, ...]]]]
"""The expected state of each key, by version and store."""


class History:
    """Everything that was ever committed to one log, recorded at its commit. Retention may delete it later."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.bytes: dict[int, bytes] = {}
        self.records: dict[int, Record] = {}
        self.manifests: dict[int, Manifest] = {}
        self.heads: dict[Address, set[Head]] = {}
        self.timers: dict[tuple[Address, Head], int | None] = {}
        self.seen_at: dict[int, float] = {}
        self.swept: set[int] = set()
        """Deleted records. A very late put may write such a record again, below all records that are read."""
        self._seen_whole: dict[tuple[object, ...], dict[object, tuple[object, ...]]] = {}
        """The decoded contents of copies by their parts, so that the same bytes are decoded once."""
        self._decoded: dict[tuple[str, int], pa.Table] = {}
        """Decoded snapshots by name and checksum."""
        self._looked_at: dict[str, bytes] | None = None
        """The objects at the last check, which found no violation."""
        self._listed: dict[str, set[str]] = {}
        """The objects of records by commit id, and those of savepoints by the name of the savepoint's object."""
        self._sound: dict[tuple[str, int, int, int], bytes] = {}
        """Listed bytes in memory whose checksum is right. They are checked again if the object is replaced."""

    def look(self) -> None:
        """Read new records, and check every invariant of the log and of the objects that it lists.

        Without a new or deleted object, nothing is checked.
        """
        head = self._there()
        if head is not None and head == self._looked_at:
            return
        log = Log(self.world.memory, self.world.home.root)
        present = [paths.parse_record_name(name) for name in self.world.memory.list(paths.LOG)]
        self.swept |= self.bytes.keys() - set(present)
        for sequence in present:
            assert sequence is not None
            if sequence in self.swept:
                continue
            data = self.world.memory.get(paths.record_name(sequence))
            assert data is not None
            assert self.bytes.setdefault(sequence, data) == data, f"I3: record {sequence} was changed"
            if sequence not in self.records:
                self._note(sequence, decode(data, ""), log)
        self.check_listed_objects()
        self._looked_at = head

    def _there(self) -> dict[str, bytes] | None:
        """Return the objects by name, or ``None`` if they are not in memory."""
        memory = self.world.memory
        return dict(memory._objects.by_name) if isinstance(memory, MemoryStore) else None  # private: all at once

    def check_told(self, commit_id: str) -> None:
        """I4: a record that was reported as committed is in the log, and not under the number of a deleted record."""
        self.look()
        is_known = any(record.commit_id == commit_id for record in self.records.values())
        assert is_known, "I4: a record was reported as committed, but the log never had it"

    def _note(self, sequence: int, record: Record, log: Log) -> None:
        manifest = log.manifest_of(record)
        assert record.sequence == sequence
        if sequence > 0:
            self._check_follows(self.records[sequence - 1], self.manifests[sequence - 1], record, manifest)
        self.records[sequence] = record
        self.manifests[sequence] = manifest
        self.seen_at[sequence] = self.world.clock.seconds()
        for address, entry in manifest.entries.items():
            _check_one_attempt_a_version(entry)
            self.heads.setdefault(address, set()).add(entry.head)
            self.timers[address, entry.head] = entry.timer_ms

    def _check_follows(self, old: Record, manifest: Manifest, new: Record, after: Manifest) -> None:
        assert new.previous == digest(self.bytes[old.sequence]), (
            "I3: the record has a wrong digest of the previous record"
        )
        assert old.promised <= new.promised <= new.sequence, "the oldest promised record moved back, or does not exist"
        retained = max(new.sequence - self.world.settings.retained_versions + 1, old.promised, 0)
        assert new.promised <= retained, "fewer records than retained_versions are promised"
        second = self.world.clock.seconds()
        kept_for = self.kept_seconds(new)
        young = [n for n in range(old.promised, new.promised) if second - self.seen_at.get(n, second) < kept_for]
        assert not young, f"records {young} are no longer promised, but are younger than retained_for"
        if new.kind == "claim":
            assert new.epoch == old.epoch + 1, "I4: a claim raises the epoch"
            assert after.entries == manifest.entries, "I3: a claim changed the state"
            assert new.version == old.version
            return
        if new.kind == "orders":
            assert (new.epoch, new.version) == (old.epoch, old.version), "I4: requests were recorded by a fenced driver"
            assert set(manifest.entries) == set(after.entries), "I3: recorded requests changed the state"
            for address, entry in after.entries.items():
                assert entry.head == manifest.entry(*address).head, "I3: recorded requests changed the state"
                _check_entry(manifest.entry(*address), entry, replace(new, version=-2))
            return
        if new.kind == "savepoint":
            assert (new.epoch, new.version) == (old.epoch + 1, old.version), "I4: a command raises the epoch"
            assert after.entries == manifest.entries, "I3: a savepoint changed the state"
            return
        if new.kind == "adopt":
            assert (new.epoch, new.version) == (old.epoch + 1, old.version), "I4: an adoption raises the epoch"
            assert after.entries == manifest.entries, "I3: an adoption changed the state"
            return
        if new.kind == "dispatch":
            self._check_switched(old, new, manifest, after)
            return
        if new.kind == "rollback":
            self._check_taken_back(old, new, after)
            return
        assert new.kind == "batch"
        assert new.epoch == old.epoch, "I4: a fenced driver has committed"
        assert new.version == old.version + 1, "I3: the version of a batch does not follow the previous one"
        assert old.schemas.keys() <= new.schemas.keys(), "I3: the schema of a store with state was dropped"
        assert set(manifest.entries) <= set(after.entries)
        for address, entry in after.entries.items():
            _check_entry(manifest.entry(*address), entry, new)

    def kept_seconds(self, record: Record) -> float:  # noqa: ARG002 - all drivers have the same settings here
        """Return for how many seconds the writer of this record at least keeps older records."""
        return self.world.settings.retained_for

    def _check_taken_back(self, old: Record, new: Record, after: Manifest) -> None:
        assert new.target is not None
        assert (new.epoch, new.rollbacks) == (old.epoch + 1, old.rollbacks + 1), "I4: a rollback raises the epoch"
        assert new.savepoints == old.savepoints, "a rollback changed the savepoints"
        assert new.version == self.records[new.target].version
        assert after.entries == self.manifests[new.target].entries, "I3: a rollback has other state than its target"
        is_same = (new.dispatch, new.total) == (old.dispatch, old.total)
        orders = old.orders if is_same else without_key_groups(old.orders)
        assert new.orders == orders, "a rollback changed the operator requests"
        changed_fields = {
            "sequence",
            "previous",
            "kind",
            "commit_id",
            "written_ms",
            "epoch",
            "query_id",
            "rollbacks",
            "target",
            "promised",
            "members",
            "delivers_as",
            "orders",
            "full",
            "between",
            "entries",
            "weights",
            "moves",
            "savepoints",
            "previous_offsets",
        }
        target = self.records[new.target]
        named = [field.name for field in fields(new) if field.name not in changed_fields]
        changed = [name for name in named if getattr(new, name) != getattr(target, name)]
        assert not changed, f"a rollback to record {new.target} has other {changed} than that record"

    def _check_switched(self, old: Record, new: Record, manifest: Manifest, after: Manifest) -> None:
        assert new.epoch == old.epoch + 1, "I4: a switch raises the epoch"
        assert (new.dispatch, new.total) != (old.dispatch, old.total)
        changed = {
            "sequence",
            "previous",
            "kind",
            "commit_id",
            "written_ms",
            "epoch",
            "total",
            "dispatch",
            "shards",
            "owners",
            "standbys",
            "target",
            "orders",
            "weights",
            "full",
            "between",
            "entries",
            "promised",
            "members",
            "moves",
        }
        wrongly_changed = [
            f.name for f in fields(old) if f.name not in changed and getattr(new, f.name) != getattr(old, f.name)
        ]
        assert not wrongly_changed, f"a switch changed {wrongly_changed}"
        assert new.orders == without_key_groups(old.orders), "a switch changed the operator requests"
        assert new.dispatch == "key_group" or {*old.shards} <= {*new.shards}, "a partition lost its shard"
        if "key_group" not in (old.dispatch, new.dispatch):
            assert (after.entries, new.shards) == (manifest.entries, old.shards), (
                "I3: a switch changed shards that it keeps"
            )

    def check_listed_objects(self) -> None:
        """I5: the objects that a retained record lists exist and are unchanged."""
        newest = max(self.records, default=-1)
        present = set(self.world.memory.list(""))
        for savepoint in self.records[newest].savepoints if self.records else ():
            name = paths.savepoint_name(savepoint.id)
            assert name in present, f"I5: savepoint {savepoint.name} is missing"
            lost_objects = self.listed_by_savepoint(savepoint) - present
            assert not lost_objects, f"I5: objects {lost_objects} of savepoint {savepoint.name} are missing"
        for sequence in range(self.records[newest].promised if self.records else 0, newest + 1):
            assert paths.record_name(sequence) in present, (
                f"I5: record {sequence}, to which a rollback may return, is missing"
            )
            missing = self.listed_by(sequence) - present if sequence in self.manifests else set()
            assert not missing, f"I5: objects {missing} of retained record {sequence} are missing"
            full = paths.record_name(self.records[sequence].full) if sequence in self.records else ""
            assert not full or full in present, f"I5: {full}, to which record {sequence} refers, is missing"
        for sequence in range(newest, max(newest - self.world.settings.retained_versions, -1), -1):
            for _, link in self.records[sequence].outputs:
                self._check_part(link)
            for (store, key_group), entry in self.manifests[sequence].entries.items():
                for link in entry.chain:
                    self._check_part(link)
                if entry.snapshot:
                    name = paths.snapshot_name(store, key_group, entry.snapshot.id)
                    data = self.world.memory.get(name)
                    assert data is not None, f"I5: {name}, which record {sequence} lists, is missing"
                    table = self._snapshot(
                        name, data, entry.snapshot.checksum, paths.snapshot_place(store, key_group, entry.snapshot.id)
                    )
                    assert part_codec.DELETED not in table.column_names, (
                        f"I5: snapshot {name} has a column of deletions"
                    )
                    assert table.num_rows == entry.snapshot.rows, (
                        f"I5: {name} has {table.num_rows} rows, not {entry.snapshot.rows}"
                    )

    def _snapshot(self, name: str, data: bytes, checksum: int, place: Place) -> pa.Table:
        self._check_bytes(name, data, 0, len(data), checksum)
        decoded = self._decoded.get((name, checksum))
        if decoded is None:
            keys = self._keys()
            part = pa.py_buffer(data)
            in_plain = part if keys is None else keys.decrypt(part, place, name)
            decoded = self._decoded[name, checksum] = part_codec.open_part(in_plain, name)
        return decoded

    def _keys(self) -> Keys | None:
        return keys_of(self.world.home)

    def listed_by(self, sequence: int) -> set[str]:
        """Return the objects of a record: those with state, and those with sealed output."""
        record = self.records[sequence]
        if record.commit_id not in self._listed:
            outputs = {link.object for _, link in record.outputs}
            self._listed[record.commit_id] = self.manifests[sequence].object_names() | outputs
        return self._listed[record.commit_id]

    def listed_by_savepoint(self, savepoint: RecordedSavepoint) -> set[str]:
        """Return the objects of a savepoint, after a check that the savepoint equals its record."""
        name = paths.savepoint_name(savepoint.id)
        if name not in self._listed:
            savepoint_record = decode(self.world.memory.get(name) or b"", "")
            sequence = savepoint.sequence
            assert savepoint_record.sequence == sequence, (
                f"savepoint {savepoint.name} keeps record {savepoint_record.sequence}, not {sequence}"
            )
            record = self.records.get(sequence)
            if record is not None and record.commit_id == savepoint_record.commit_id:
                assert savepoint_record.entries == self.manifests[sequence].entries, (
                    f"savepoint {savepoint.name} has other state"
                )
            self._listed[name] = savepoint_objects(savepoint_record)
        return self._listed[name]

    def _check_part(self, link: Link) -> None:
        data = self.world.memory.get(link.object)
        assert data is not None, f"I5: {link.object} is missing"
        start, end = link.byte_range
        if link.block is not None:
            footer, actual = checksum_of_block(data[:end])
            assert (footer, actual) == (link.checksum, link.checksum), f"I5: {link.object} was overwritten"
            return
        self._check_bytes(link.object, data, start, end - start, link.checksum)

    def _check_bytes(self, name: str, data: bytes, start: int, length: int, checksum: int) -> None:
        """Compare a part of an object with its checksum. The same bytes in memory are checked once."""
        read_key = (name, start, length, checksum)
        if self._sound.get(read_key) is not data:
            assert part_codec.checksum(data[start : start + length]) == checksum, f"I5: {name} was overwritten"
            self._sound[read_key] = data

    def check_copies(self, contents: Contents, owner: str = "") -> int:
        """I2: every readable local copy holds exactly a committed version. Return the number of checked copies.

        If ``owner`` is set, only the copies of this owner are checked.
        """
        checked = 0
        for path in sorted(self.world.local_dir.glob("*/m*/owner")):
            if owner and path.read_text() != owner:
                continue
            folder = Folder(path.parent, path.read_text())
            for address in folder.copies():
                stack = folder.stacks(address[0]).read(address[1])
                if stack is not None:
                    checked += self.check_copy(folder.path, address, stack, contents)
        return checked

    def check_copy(self, folder: Path, address: Address, stack: Stack, contents: Contents) -> bool:
        """I2: a readable copy of a durable store equals a committed version. Return whether the copy was checked."""
        store, key_group = address
        operator = next(operator for operator in self.world.operators if operator.store == store)
        head = stack.head
        if not operator.durable:
            return False
        try:
            if head.version < 0:
                assert not rows_of_stack(folder, operator.schema, stack, key_group, self._keys()).num_rows
                return False
            local_rows = self._held(folder, operator.schema, stack, key_group)
        except DamagedCopy:
            return False
        where = f"I2: {address} of {folder.name}"
        assert head in self.heads.get(address, ()), f"{where} is at {head}, which was never committed"
        expected = self._part_of(self._contents_at(head, contents)[store], key_group, head)
        assert local_rows == expected, f"{where} at {head} holds {local_rows}, not {expected}"
        return True

    def _held(
        self, folder: Path, schema: StoreSchema, stack: Stack, key_group: int
    ) -> dict[object, tuple[object, ...]]:
        timer_ms = self.timers.get(((schema.store, key_group), stack.head))
        parts = [(checksum_on_disk(folder, part), part.epoch, part.declaration) for part in stack.parts]
        timer_key = (schema.store, key_group, timer_ms, *parts)
        if timer_key not in self._seen_whole:
            table = rows_of_stack(folder, schema, stack, key_group, self._keys())
            self._seen_whole[timer_key] = held_by_key(_still_there(table, schema.due, timer_ms))
        return self._seen_whole[timer_key]

    def _part_of(
        self,
        state: Mapping[object, tuple[object, ...]],
        key_group: int,
        head: Head,  # noqa: ARG002 - one dispatch
    ) -> dict[object, tuple[object, ...]]:
        """Return the part of a state that belongs in a key-group's copy at a head."""
        return of_key_group(state, key_group, self.world.settings.key_groups)

    def _contents_at(self, head: Head, contents: Contents) -> Mapping[str, Mapping[object, tuple[object, ...]]]:
        """Return the expected state of all stores at a head."""
        return contents[head.version]


def _still_there(table: pa.Table, due: str | None, timer_ms: int | None) -> pa.Table:
    """Return the rows that are not yet due by the timer of the log. Rows that are due may still be in the copy."""
    if due is None:
        return table
    times = in_milliseconds(table.column(due).combine_chunks())
    return table.filter(pa.array(table.column(due).is_null().to_numpy() | (times >= first_ms_of(timer_ms))))


def _check_one_attempt_a_version(entry: Entry) -> None:
    versions = [link.head.version for link in entry.chain]
    start = entry.snapshot.head.version if entry.snapshot else -1
    assert versions == sorted(set(versions)), f"I1: two attempts of one version are listed: {entry.chain}"
    assert not versions or start < versions[0], "I1: a delta is listed although the snapshot contains it"


def _check_entry(old: Entry, new: Entry, record: Record) -> None:
    chain: tuple[Link, ...] = new.chain
    added: tuple[Link, ...] = ()
    if new.chain and new.chain[-1].head.version == record.version:
        chain = new.chain[:-1]
        added = new.chain[-1:]
    for link in added:
        assert int(link.head.attempt.split("-")[0]) == record.epoch, "I1: an attempt of another epoch is listed"
    if added and not chain and new.snapshot is None:
        return  # the delta has the whole state
    before = old.chain
    if new.snapshot != old.snapshot:
        assert new.snapshot is not None, "I3: a snapshot was dropped"
        heads = [link.head for link in old.chain]
        assert new.snapshot.head in heads, "I3: the head of a snapshot is not in the chain that it replaces"
        before = old.chain[heads.index(new.snapshot.head) + 1 :]
    _check_chain(before, chain)


def _check_chain(before: tuple[Link, ...], after: tuple[Link, ...]) -> None:
    """Check that each link of ``after`` is a link of ``before``, or a merged delta that replaces successive ones."""
    rest = list(before)
    for link in after:
        assert rest, "I3: the chain was changed"
        covered = rest.pop(0)
        while covered != link and covered.head != link.head:
            assert link.merged is not None, "I3: the chain was changed"
            assert rest, "I3: the head of a merged delta is not in the chain"
            covered = rest.pop(0)
        assert covered == link or link.merged is not None, "I3: a link was replaced"
    assert not rest, "I3: links were dropped"


def of_key_group(
    state: Mapping[object, tuple[object, ...]], key_group: int, total: int
) -> dict[object, tuple[object, ...]]:
    """Return the part of a state that belongs to a key-group."""
    if not state:
        return {}
    groups = keygroups.key_groups([pa.array(list(state), pa.string())], total).tolist()
    return {key: value for (key, value), group in zip(state.items(), groups, strict=True) if group == key_group}
