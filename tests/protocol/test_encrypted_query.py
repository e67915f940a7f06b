"""Queries with encrypted state: driver, slots, upkeep and local files, while keys are added and removed."""

from __future__ import annotations

import base64
import json
import math
import random
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

from riffle_spark import transform_with_state
from riffle_spark.console.main import main
from riffle_spark.errors import ConfigError, CorruptStateError, RiffleError
from riffle_spark.offline.switch import switch_dispatch, switch_keys
from riffle_spark.state.copies import part_files
from riffle_spark.state.formats import part_codec
from riffle_spark.state.formats.blocks import read_index
from riffle_spark.state.log import entry_rows, paths
from riffle_spark.state.log.log import Log
from riffle_spark.state.log.manifest import Address, Entry, Link, Manifest
from riffle_spark.state.objects.encryption import PLAIN, key_id_of
from riffle_spark.state.restore.reader import Reader
from riffle_spark.testing import Attempt, Harness
from riffle_spark.worker.member_folders import keys_in
from tests.kit.pages import CHECKOUT, blocks
from tests.kit.processors.visit_processors import Reminders
from tests.kit.simulated.world import ROWS, Oracle, World, drawn_batch, one_row, totals, two_stores

KEYS = {name: bytes([number]) * 32 for number, name in enumerate("abc", 1)}
SECRET = 0x5EC2E7_5EC2E7


def listing(*names: str, **others: bytes) -> str:
    """Return a file of these keys in this order."""
    listed_keys = {**KEYS, **others}
    lines = (name if name == PLAIN else f"{name} = {base64.b64encode(listed_keys[name]).decode()}" for name in names)
    return "\n".join(lines) + "\n"


class EncryptedQuery:
    """A simulated query with its keys in a file, and an oracle of its state."""

    def __init__(self, folder: Path, *names: str, **settings: object) -> None:
        self.file = folder / "keys"
        self.give(*names)
        arguments = {"operators": two_stores(), "encryption_keys": f"file:{self.file}", "num_standbys": 1, **settings}
        self.world = World(folder / "copies", **arguments)  # type: ignore[arg-type]
        self.oracle, self.version, self.chance = Oracle(), 0, random.Random(7)

    def give(self, *names: str, **others: bytes) -> None:
        """Write the file of keys."""
        self.file.write_text(listing(*names, **others))

    def run(self, batches: int = 6) -> None:
        """Run some batches and feed them to the oracle."""
        for _ in range(batches):
            rows = drawn_batch(self.chance, self.version)
            self.oracle.feed(rows)
            self.world.batch(self.version, rows)
            self.version += 1

    def start_again(self, **changes: object) -> None:
        """Stop the query and start it with other settings."""
        arguments = {"operators": self.world.operators, **self.world.settings.given(), **changes}
        self.world = World(self.world.local_dir, root=self.world.home.root, **arguments)  # type: ignore[arg-type]

    def check(self) -> None:
        """Compare the whole state, restored from objects only, with the oracle."""
        assert self.world.state("totals") == self.oracle.totals
        assert {key: last for key, (last,) in self.world.state("tails").items()} == self.oracle.tails

    def parts(self) -> Iterator[tuple[str, str, bytes]]:
        """Yield the store, place and bytes of each part in the newest record, or of the rows of its block."""
        for (store, key_group), entry in self.world.log().manifest.entries.items():
            if entry.snapshot:
                name = paths.snapshot_name(store, key_group, entry.snapshot.id)
                place = paths.snapshot_place(store, key_group, entry.snapshot.id)
                yield store, place.text, self.world.memory.get(name) or b""
            for link in entry.chain:
                place = link.place(store, key_group)
                start, end = link.byte_range
                data = self.world.memory.get(link.object, start, end - start) or b""
                yield store, place.text, data if link.block is None else read_index(pa.py_buffer(data))[0].to_pybytes()

    def keys_used(self) -> set[str]:
        """Return the key ids of all parts in the newest record."""
        return {key_id_of(part) for _, _, part in self.parts()}

    def files(self) -> list[bytes]:
        """Return the content of all local files except journals."""
        paths_ = (path for path in self.world.local_dir.rglob("*") if path.is_file())
        return [
            path.read_bytes()
            for path in paths_
            if path.suffix in {".part", ".block", ""} or path.parent.name == "fetched"
        ]


def test_objects_and_local_files_have_no_plaintext_rows_or_keys(tmp_path: Path) -> None:
    """After restarts, lost disks, merges and snapshots, no object and no local file has a row's key or value, or an
    encryption key.
    """
    query = EncryptedQuery(tmp_path, "a", deliver_after_commit=True)
    marked = [f"key-{number}".encode() for number in range(12)] + [SECRET.to_bytes(8, "little"), b"riffle.format"]
    for turn in range(3):
        query.run(5)
        query.world.batch(query.version, one_row(SECRET, key="key-3"))
        query.oracle.feed(one_row(SECRET, key="key-3"))
        query.version += 1
        query.world.cluster.lose(str(turn + 1), disk=turn == 1)
        query.world.cluster.add(str(turn + 3))
        query.world.start()
    query.run(4)
    query.check()
    assert query.keys_used() == {"a"}
    objects = {name: query.world.memory.get(name) or b"" for name in query.world.memory.list("")}
    all_bytes = [*objects.values(), *query.files()]
    assert len(query.files()) > 20
    assert any("/snapshot/" in name for name in objects)
    assert [mark for mark in marked if any(mark in data for data in all_bytes)] == []
    assert not any(KEYS["a"] in data or base64.b64encode(KEYS["a"]) in data for data in all_bytes)
    assert sum(map(len, query.world.delivered("totals"))) > 0


def test_the_function_of_the_formats_page_decrypts_every_part(tmp_path: Path) -> None:
    """The function on the formats page decrypts every part in the log with only the key and the place."""
    (shown,) = (b for b in blocks(CHECKOUT / "docs" / "formats.md") if "def decrypted" in b.code)
    page: dict[str, Any] = {}
    exec(shown.code, page)
    query = EncryptedQuery(tmp_path, "a", "b")
    query.run(8)
    parts = list(query.parts())
    assert len(parts) > 10
    for store, place, part in parts:
        names = pa.ipc.open_stream(page["decrypted"](KEYS, part, place)).schema.names
        assert ("total" if store == "totals" else "last") in names


def test_an_old_key_can_be_removed_once_no_part_uses_it(tmp_path: Path) -> None:
    """After a restart new parts have the newest key. Once the log lists no part with the old key, that key can be
    removed. Local files with it are replaced from the store.
    """
    query = EncryptedQuery(tmp_path, "a", operators=[totals()])
    keys = [f"key-{number}" for number in range(12)]

    def run(batches: int) -> None:
        for _ in range(batches):
            rows = pa.concat_tables(one_row(query.version, key=key) for key in keys)
            query.oracle.feed(rows)
            query.world.batch(query.version, rows)
            query.version += 1

    run(4)
    query.give("a", "b")
    query.start_again(operators=[totals()])
    run(1)
    assert query.keys_used() == {"a", "b"}
    run(8)
    assert query.keys_used() == {"b"}
    query.give("b")
    query.start_again(operators=[totals()])
    run(2)
    assert query.world.state("totals") == query.oracle.totals


def test_riffle_keys_rewrites_unchanged_state_with_the_newest_key(tmp_path: Path) -> None:
    """``riffle keys`` counts parts by key, and rewrites them only with --execute. Then the old key can be removed, and
    the query continues with the same state.
    """
    query = EncryptedQuery(tmp_path, "a")
    query.run(6)
    root, config = query.world.home.root, tmp_path / "riffle.toml"
    config.write_text(f'encryption_keys = "file:{query.file}"\n')
    query.give("a", "b")

    def run_keys(*arguments: str) -> str:
        result = CliRunner().invoke(main, ["keys", root, "--conf-file", str(config), *arguments])
        assert result.exit_code == 0, result.output
        return result.output

    assert re.fullmatch(r"a: \d+ parts, \d+ bytes\n", run_keys())
    assert "Nothing was changed" in run_keys("--rewrite")
    assert query.keys_used() == {"a"}
    assert "append a record" in run_keys("--rewrite", "--execute")
    assert re.fullmatch(r"b: \d+ parts, \d+ bytes\n", run_keys())
    query.give("b")
    query.start_again()
    query.check()
    query.run(3)
    query.check()


def test_riffle_verify_decrypts_parts_with_the_keys(tmp_path: Path) -> None:
    """``riffle verify`` decrypts parts with the keys of its settings. It reports a part in another place, a missing key
    and a missing setting.
    """
    query = EncryptedQuery(tmp_path, "a", num_standbys=0, snapshot_chain_links=3)
    query.run(9)
    config = tmp_path / "riffle.toml"
    config.write_text(f'encryption_keys = "file:{query.file}"\n')

    def verify() -> tuple[int, str]:
        result = CliRunner().invoke(main, ["verify", query.world.home.root, "--conf-file", str(config)])
        return result.exit_code, result.output

    code, text = verify()
    assert (code, text.endswith(" No problems found.\n")) == (0, True), text
    query.give("b")
    code, text = verify()
    assert code == 3
    assert "Key 'a' is needed" in text
    query.give("a")
    entries = dict(query.world.log().manifest.entries)
    with_swapped_snapshots(query, entries, [name for name, entry in sorted(entries.items()) if entry.snapshot][:2])
    appended(query.world.log(), entries)
    code, text = verify()
    assert code == 1
    assert "belong to another part" in text
    config.write_text("")
    code, text = verify()
    assert code == 3
    assert "`encryption_keys` is not set" in text


def test_a_query_can_switch_to_encryption_and_back(tmp_path: Path) -> None:
    """With ``plain`` listed first, unencrypted state is read and new state is encrypted. With ``plain`` listed last,
    new state is unencrypted, and later the query can start without keys.
    """
    query = EncryptedQuery(tmp_path, "a", encryption_keys=None, operators=[totals()], num_standbys=0)
    setting, rows = f"file:{query.file}", pa.concat_tables(one_row(1, key=f"key-{number}") for number in range(12))

    def batches(count: int) -> None:
        for _ in range(count):
            query.oracle.feed(rows)
            query.world.batch(query.version, rows)
            query.version += 1

    batches(3)
    query.start_again(encryption_keys=setting, operators=[totals()])
    with pytest.raises(ConfigError, match="RIFFLE-0428"):
        query.world.batch(query.version, rows)
    query.give(PLAIN, "a")
    query.start_again(operators=[totals()])
    batches(8)
    assert query.keys_used() == {"a"}
    query.start_again(encryption_keys=None, operators=[totals()])
    with pytest.raises(ConfigError, match="RIFFLE-0220"):
        query.world.batch(query.version, rows)
    query.give("a", PLAIN)
    query.start_again(encryption_keys=setting, operators=[totals()])
    batches(8)
    assert query.keys_used() == {PLAIN}
    query.start_again(encryption_keys=None, operators=[totals()])
    batches(2)
    assert query.world.state("totals") == query.oracle.totals


@pytest.mark.parametrize("before", [(PLAIN,), ("b",)])
def test_local_files_with_a_removed_key_are_deleted_at_the_start(tmp_path: Path, before: tuple[str, ...]) -> None:
    """After all state is rewritten and the old key, or ``plain``, is removed, the next start deletes all local files
    with that key. No state is lost.
    """
    query = EncryptedQuery(tmp_path, "a", *before, operators=[totals()], retained_versions=30, snapshot_chain_links=30)
    rows = pa.concat_tables(one_row(SECRET, key=f"key-{number}") for number in range(12))

    def run(rows: pa.Table) -> None:
        query.oracle.feed(rows)
        query.world.batch(query.version, rows)
        query.version += 1

    for _ in range(4):
        run(rows)
    query.give(*before, "a")
    query.start_again(operators=[totals()])
    run(one_row(1, key="key-0"))
    config = tmp_path / "riffle.toml"
    config.write_text(f'encryption_keys = "file:{query.file}"\n')
    arguments = ["keys", query.world.home.root, "--conf-file", str(config), "--rewrite", "--execute"]
    assert CliRunner().invoke(main, arguments).exit_code == 0

    def old() -> set[Path]:
        parts = [path for path in query.world.local_dir.rglob("*") if path.parent.name in {"sealed", "fetched"}]
        parts += query.world.local_dir.rglob("*.part")
        return {path for path in parts if key_id_of(path.read_bytes()) != "a"}

    assert old(), "some local files have the old key"
    query.give("a")
    query.start_again(operators=[totals()])
    run(one_row(1, key="key-0"))
    assert old() == set()
    marks = [b"key-", SECRET.to_bytes(8, "little")]
    file_bytes = [path.read_bytes() for path in query.world.local_dir.rglob("*") if path.is_file()]
    assert not any(mark in data for mark in marks for data in file_bytes)
    for _ in range(3):
        run(rows)
    assert query.world.state("totals") == query.oracle.totals
    assert query.keys_used() == {"a"}


def test_an_encrypted_root_refuses_a_query_without_keys(tmp_path: Path) -> None:
    """A root that a change of the dispatch has encrypted refuses a query without keys, so that no unencrypted state is
    added.
    """
    query = EncryptedQuery(tmp_path, PLAIN, "a", encryption_keys=None, operators=[totals()], num_standbys=0)
    query.world.batch(0, one_row(1))
    switch_dispatch(
        query.world.home.root, "key_group", key_groups=16, execute=True, encryption_keys=f"file:{query.file}"
    )
    query.start_again(key_groups=16, operators=[totals()])
    with pytest.raises(ConfigError, match="RIFFLE-0220"):
        query.world.batch(1, one_row(1, key="another"))


@pytest.mark.parametrize(
    ("names", "others", "expected_message"),
    [
        (("b",), {}, "RIFFLE-0440"),
        (("a",), {"a": bytes(32)}, "RIFFLE-0468"),
        ((), {}, "RIFFLE-0432"),
    ],
)
@pytest.mark.parametrize("disk", [True, False])
@pytest.mark.sample(step=2)
def test_a_missing_or_wrong_key_fails_the_batch(
    tmp_path: Path, names: tuple[str, ...], others: dict[str, bytes], expected_message: str, *, disk: bool
) -> None:
    """With a missing or wrong key the batch fails with a remedy, with and without local copies. Nothing is output or
    put, and with the right key the query continues.
    """
    query = EncryptedQuery(tmp_path, "a", num_standbys=0)
    query.run(5)
    if not disk:
        for name in ("1", "2"):
            query.world.cluster.lose(name, disk=True)
    part_files._files.clear()  # private: as in new executor processes
    before, rows = query.world.memory.list("delta"), drawn_batch(random.Random(3), 90)
    query.give(*names, **others)

    def go_on() -> None:
        query.start_again()
        query.world.batch(query.version, rows)

    with pytest.raises(ConfigError, match=expected_message) as caught:
        go_on()
    assert KEYS["a"].hex() not in str(caught.value)
    assert query.world.memory.list("delta") == before
    query.give("a")
    query.start_again()
    query.run(3)
    query.check()


def test_an_executor_with_a_different_key_puts_nothing(tmp_path: Path) -> None:
    """An executor whose key of that id differs from the driver's key puts nothing, and the batch fails. With the same
    key everywhere the query continues.
    """
    query = EncryptedQuery(tmp_path, "a", num_standbys=0)

    put = []

    def with_its_own(attempt: Attempt) -> pa.Table:
        if attempt.executor != "2":
            return attempt.run()
        before = query.world.memory.list("")
        query.give("a", a=bytes(32))
        try:
            return attempt.run()
        finally:
            query.give("a")
            put.append(set(query.world.memory.list("")) - set(before))

    rows = pa.concat_tables(one_row(1, key=f"key-{number}") for number in range(12))
    with pytest.raises(ConfigError, match="RIFFLE-0426"):
        query.world.batch(0, rows, with_its_own)
    assert put == [set()] * len(put) != []
    query.oracle.feed(rows)
    query.world.batch(0, rows)
    query.check()


def test_a_driver_whose_key_differs_from_the_log_writes_nothing(tmp_path: Path) -> None:
    """A driver whose key differs from that of the log writes nothing, even if its batch reads nothing."""
    query = EncryptedQuery(tmp_path, "a", num_standbys=0)
    query.run(1)
    before = query.world.memory.list("")
    query.give("a", a=bytes(32))
    query.start_again()
    with pytest.raises(ConfigError, match="RIFFLE-0468"):
        query.world.batch(query.version, ROWS.empty_table())
    assert query.world.memory.list("") == before


def with_swapped_snapshots(query: EncryptedQuery, entries: dict[Address, Entry], addresses: Sequence[Address]) -> None:
    """Swap the bytes of two snapshots, and list them with the right checksums."""
    snapshots = [entries[address].snapshot for address in addresses]
    assert snapshots[0] is not None
    assert snapshots[1] is not None
    names = [paths.snapshot_name(*address, one.id) for address, one in zip(addresses, snapshots, strict=True) if one]
    data = [query.world.memory.get(name) or b"" for name in names]
    query.world.memory.delete(names)
    for address, snapshot, name, other in zip(addresses, snapshots, names, data[::-1], strict=True):
        query.world.memory.put_if_absent(name, other)
        listed = snapshot._replace(length=len(other), checksum=part_codec.checksum(other)) if snapshot else None
        entries[address] = replace(entries[address], snapshot=listed)


def appended(log: Log, entries: Mapping[Address, Entry]) -> None:
    """Append a record with these entries."""
    tail = log.open()
    assert tail is not None
    log.append(replace(tail, commit_id="f" * 32, epoch=tail.epoch + 1), Manifest(entries))


def flipped(query: EncryptedQuery, place: Callable[[Link], int], mend: Callable[[bytes], int]) -> None:
    """Flip a bit in the newest link of a key-group, and list the new checksum."""
    log = query.world.log()
    entries = dict(log.manifest.entries)
    name = next(name for name, entry in sorted(entries.items()) if entry.chain)
    link = entries[name].chain[-1]
    data = bytearray(query.world.memory.get(link.object) or b"")
    data[place(link)] ^= 1
    start, end = link.byte_range
    if link.block is None:
        checksum = mend(bytes(data[start:end]))
    else:
        checksum = mend(bytes(data[: end - 16]))
        data[end - 16 : end - 8] = checksum.to_bytes(8, "little")
    query.world.memory.delete([link.object])
    query.world.memory.put_if_absent(link.object, bytes(data))
    for address, entry in entries.items():
        chain = tuple(
            other._replace(checksum=checksum)
            if (other.object, other.byte_range) == (link.object, (start, end))
            else other
            for other in entry.chain
        )
        entries[address] = replace(entry, chain=chain)
    appended(log, entries)


def refusal(query: EncryptedQuery) -> RiffleError:
    """Return the error of a restore from the objects."""
    with pytest.raises(CorruptStateError) as caught:
        query.check()
    return caught.value


@pytest.mark.parametrize("headers_max", [pytest.param(1e-9, id="blocks"), pytest.param(math.inf, id="parts")])
@pytest.mark.parametrize("swapped", ["key-groups", "stores"])
@pytest.mark.parametrize("kind", ["links", "snapshots"])
@pytest.mark.sample(step=3)
def test_swapped_encrypted_parts_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, swapped: str, headers_max: float
) -> None:
    """If the parts of two key-groups or stores are swapped, with right checksums in the log, reads and ``riffle
    verify`` fail and return no row.
    """
    monkeypatch.setattr(part_codec, "_HEADERS_MAX", headers_max)  # private: no setting
    kept = {"snapshot_chain_links": 3} if kind == "snapshots" else {"retained_versions": 30, "snapshot_chain_links": 30}
    query = EncryptedQuery(tmp_path, "a", num_standbys=0, operators=[totals(), totals("twins")], **kept)
    for version in range(9):
        query.world.batch(version, drawn_batch(query.chance, version))
    entries = dict(query.world.log().manifest.entries)
    addresses = sorted(name for name, entry in entries.items() if name[0] == "totals" and (
        entry.snapshot if kind == "snapshots" else entry.chain))[:2]  # fmt: skip
    if swapped == "stores":
        addresses = [addresses[0], ("twins", addresses[0][1])]
    if kind == "snapshots":
        with_swapped_snapshots(query, entries, addresses)
    else:
        entries[addresses[0]], entries[addresses[1]] = entries[addresses[1]], entries[addresses[0]]
    is_refused_by_log = kind == "links" and swapped == "key-groups" and entries[addresses[0]].chain[0].block is not None
    log = query.world.log()
    if is_refused_by_log:  # a link in a block has its key-group
        with pytest.raises(ValueError, match="another key-group"):
            entry_rows.checked_entries_from_json(json.loads(entry_rows.entries_to_text(entries)))
        return
    appended(log, entries)
    with pytest.raises(CorruptStateError, match="RIFFLE-0430"):
        query.world.state("totals")
    config = tmp_path / "riffle.toml"
    config.write_text(f'encryption_keys = "file:{query.file}"\n')
    assert CliRunner().invoke(main, ["verify", query.world.home.root, "--conf-file", str(config)]).exit_code == 1


def test_an_older_snapshot_under_the_newest_name_is_refused(tmp_path: Path) -> None:
    """An older snapshot under the name of the newest one does not decrypt. A record that lists the older id for a newer
    version is refused.
    """
    query = EncryptedQuery(tmp_path, "a", num_standbys=0, snapshot_chain_links=2, operators=[totals()])
    rows = pa.concat_tables(one_row(1, key=f"key-{number}") for number in range(12))
    older: dict[str, bytes] = {}
    for version in range(9):
        query.world.batch(version, rows)
        names = [name for name in query.world.memory.list("totals") if "/snapshot/" in name]
        older |= {name: query.world.memory.get(name) or b"" for name in names}
    address, entry = next(item for item in sorted(query.world.log().manifest.entries.items()) if item[1].snapshot)
    assert entry.snapshot is not None
    newest = paths.snapshot_name(*address, entry.snapshot.id)
    name, data = next(
        item
        for item in sorted(older.items())
        if item[0].startswith(paths.snapshot_prefix(*address)) and item[0] < newest
    )
    query.world.memory.delete([newest])
    query.world.memory.put_if_absent(newest, data)
    listed = entry.snapshot._replace(length=len(data), checksum=part_codec.checksum(data))
    log = query.world.log()
    appended(log, {**log.manifest.entries, address: replace(entry, snapshot=listed)})
    with pytest.raises(CorruptStateError, match="RIFFLE-0430"):
        query.world.state("totals")
    renamed = listed._replace(id=name.rpartition("/")[2])
    appended(log, {**log.manifest.entries, address: replace(entry, snapshot=renamed)})
    with pytest.raises(CorruptStateError, match="RIFFLE-0418"):
        query.world.log()


def test_sealed_output_of_another_store_is_refused(tmp_path: Path) -> None:
    """Sealed output rows decrypt only for their own store."""
    query = EncryptedQuery(
        tmp_path, "a", num_standbys=0, deliver_after_commit=True, operators=[totals(), totals("twins")]
    )
    query.world.batch(0, one_row(1))
    tail = query.world.log().open()
    assert tail is not None
    links = dict(tail.outputs)
    assert sorted(links) == ["totals", "twins"]
    reader = Reader(query.world.memory, keys_in(f"file:{query.file}", None))
    (rows,) = reader.read_outputs("totals", [links["totals"]]).values()
    assert rows.column("total").to_pylist() == [1]
    with pytest.raises(CorruptStateError, match="RIFFLE-0430"):
        reader.read_outputs("totals", [links["twins"]])


@pytest.mark.parametrize("headers_max", [pytest.param(1e-9, id="blocks"), pytest.param(math.inf, id="parts")])
@pytest.mark.parametrize("at", ["ciphertext", "tag", "nonce", "salt"])
def test_altered_bytes_are_refused_even_if_the_checksum_matches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str, headers_max: float
) -> None:
    """Altered bytes fail by their checksum, or by their authentication tag if the checksum in the log matches."""
    monkeypatch.setattr(part_codec, "_HEADERS_MAX", headers_max)  # private: no setting
    query = EncryptedQuery(tmp_path, "a", num_standbys=0, snapshot_chain_links=30)
    query.run(3)
    place = {"ciphertext": 200, "tag": -1, "nonce": 35, "salt": 20}[at]

    def where(link: Link) -> int:
        start, end = link.byte_range
        if link.block is not None:
            data = query.world.memory.get(link.object, 0, end) or b""
            end = read_index(pa.py_buffer(data))[0].size
        return start + place if place >= 0 else end + place

    flipped(query, where, part_codec.checksum)
    assert refusal(query).id == "RIFFLE-0430"
    flipped(query, where, lambda _: 1)
    assert re.search("checksum", refusal(query).problem)


def test_a_damaged_encrypted_local_file_is_restored(tmp_path: Path) -> None:
    """A damaged encrypted local file is found and restored. State and output stay correct."""
    query = EncryptedQuery(tmp_path, "a", num_standbys=0)
    query.run(6)
    for path in [*query.world.local_dir.rglob("*.part"), *query.world.local_dir.rglob("sealed/*")]:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 4
        path.write_bytes(bytes(data))
    query.run(4)
    query.check()
    assert query.keys_used() == {"a"}


def test_memory_for_decrypted_parts_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process keeps decrypted parts only up to a bound and the newest one. State stays correct."""
    most = 20_000
    monkeypatch.setattr(part_files, "_DECRYPTED_BYTES_MAX", most)  # private: a bound that a small state reaches
    monkeypatch.setattr(part_files, "_files", OrderedDict())  # private: the open files of this process
    monkeypatch.setattr(part_files, "_decrypted", part_files._DecryptedRows())  # private: as above
    query = EncryptedQuery(tmp_path, "a", num_standbys=0)
    kept = []
    sizes = list[int]()
    for _ in range(6):
        query.run(1)
        files, decrypted_sizes = part_files._files, part_files._decrypted  # private: the open files and their sizes
        opened = {(path, start) for path, file in files.items() for start in file.rows}
        blocks = {path: file.block[1] for path, file in files.items() if file.block is not None}
        counted = opened | {(path, part_files._WHOLE) for path in blocks}  # private: as above
        assert counted == set(decrypted_sizes.sizes), "released parts are not counted"
        kept.append(sum(run.rows.nbytes for key in opened for run in files[key[0]].rows[key[1]][1]))
        kept[-1] += sum(block._table.nbytes for block in blocks.values())  # private: as above
        sizes += decrypted_sizes.sizes.values()
    query.check()
    longest = max(sizes)
    assert 0 < max(kept) <= most + longest


def test_messages_and_log_have_key_ids_but_no_keys(tmp_path: Path) -> None:
    """The messages to executors and the log have the source of the keys and the id and fingerprint of the key, but no
    key.
    """
    query = EncryptedQuery(tmp_path, "a", "b")
    query.run(2)
    home, keys = query.world.home.to_json(), keys_in(f"file:{query.file}", None)
    assert keys is not None
    assert (f'"key":"{keys.write_key}"' in home, str(query.file) in home) == (True, True)
    assert base64.b64encode(KEYS["b"]).decode() not in home
    tail = Log(query.world.memory, query.world.home.root).open()
    assert tail is not None
    assert {text.get("encryption_key") for text in tail.schemas.values()} == {keys.write_key}
    assert ROWS.names


def test_timers_fire_after_a_rewrite_of_all_parts(tmp_path: Path) -> None:
    """``riffle keys --rewrite`` keeps the next timer of each key-group."""
    (tmp_path / "keys").write_text(listing("a"))
    keys = f"file:{tmp_path}/keys"
    operator = transform_with_state(Reminders(), key="user", output="user string", time_mode="ProcessingTime")
    with Harness(operator, pa.schema([("user", pa.string())]), encryption_keys=keys) as query:
        query.feed([{"user": "ann"}])
        (tmp_path / "keys").write_text(listing("a", "b"))
        switch_keys(query.root, encryption_keys=keys, rewrite=True, execute=True)
        query.restart()
        query.advance(10)
        assert query.feed([]) == [{"user": "ann"}]


def test_a_snapshot_of_a_single_delta_is_encrypted_again(tmp_path: Path) -> None:
    """If a copy has a single delta, its part is encrypted again for the place of the snapshot. No damage is reported,
    and the delta is deleted.
    """
    query = EncryptedQuery(tmp_path, "a", retained_versions=3, retained_for=0)
    query.run(1)
    warnings: list[str] = []
    for _ in range(40):
        query.world.clock.advance(120)
        query.oracle.feed(one_row(1, key="hot"))
        warnings += query.world.batch(query.version, one_row(1, key="hot")).warnings
        query.version += 1
    assert not [text for text in warnings if "damaged" in text]
    assert all(entry.snapshot for entry in query.world.log().manifest.entries.values())
    assert not [
        name
        for name in query.world.memory.list("delta/")
        if (parsed_name := paths.parse_object_name(name)) and not parsed_name.version
    ]
    query.check()
