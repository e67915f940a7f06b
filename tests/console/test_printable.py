"""Output of commands, errors and logs is printable, whatever records, parts, names and answers contain."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from riffle_spark.console.main import main
from riffle_spark.errors import CorruptStateError, UserFunctionError
from riffle_spark.state.formats.part_codec import ENCRYPTED
from riffle_spark.state.log import paths
from riffle_spark.state.log.record import Record, RecordedMember, decode, encode
from riffle_spark.state.objects.memory import MemoryStore
from tests.kit.simulated.world import World, one_row

EVIL = "x\x1b[2J\x07\r\u202e\u2028\x9b2J\ud800\nstate: forged"
"""Text that clears a screen, rings, overwrites a line, reverses text, also by C1 codes, with half a character and a
line break.
"""
OFFSETS = f'v1\n{{"batchWatermarkMs":0}}\n{{"{EVIL.partition(chr(10))[0]}":0}}'
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("verify", "{root}", "--checkpoint", "{checkpoint}"),
    ("plan", "{root}"),
    ("keys", "{root}"),
    ("adopt", "{root}", "--checkpoint", "{checkpoint}"),
    ("rollback", "{root}", "--checkpoint", "{checkpoint}", "--to", "1"),
)


def is_printable(text: str) -> bool:
    """Return whether a text has only printable characters and no forged line."""
    return "".join(text.split("\n")).isprintable() and "\nstate: forged" not in text


def run_on(command: Sequence[str], world: World, checkpoint: Path) -> tuple[int, str]:
    """Run a command on a world's root. Return its exit code and its output."""
    arguments = [word.format(root=world.home.root, checkpoint=checkpoint) for word in command]
    done = CliRunner().invoke(main, arguments)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


def with_evil(record: Record) -> Record:
    """Return a record with control characters in every text that it may have."""
    return replace(
        record,
        offsets=OFFSETS,
        owners=dict.fromkeys(record.owners, EVIL),
        standbys=dict.fromkeys(record.owners, (EVIL, "other")),
        members=tuple(RecordedMember(name, EVIL, EVIL, 2, EVIL, {"zone": EVIL}) for name in (EVIL, "other")),
        schemas={name: {**texts, "text": EVIL} for name, texts in record.schemas.items()},
    )


def newest(world: World) -> Record:
    """Return a world's newest record."""
    name = max(name for name in world.memory.list(paths.LOG) if paths.parse_record_name(name) is not None)
    return decode(world.memory.get(name) or b"", name)


def rewrite(world: World, record: Record) -> None:
    """Replace a stored record, as anyone who may write below the root can do."""
    assert isinstance(world.memory, MemoryStore)
    world.memory._objects.by_name[paths.record_name(record.sequence)] = encode(record)  # private: the name is taken


@pytest.fixture
def filled(world: World, tmp_path: Path) -> World:
    """Return a query with some batches and a checkpoint."""
    for version in range(3):
        world.batch(version, one_row(version))
    for folder in ("offsets", "commits"):
        (tmp_path / folder).mkdir()
        for version in range(3):
            (tmp_path / folder / str(version)).write_text(OFFSETS.replace("\ud800", ""))
    return world


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_escapes_control_characters(filled: World, tmp_path: Path, command: tuple[str, ...]) -> None:
    """Commands escape control characters in members, hosts, racks, tags, schemas and offsets of the newest record."""
    record = newest(filled)
    (tmp_path / "metadata").write_text(json.dumps({"id": record.query_id}))
    rewrite(filled, with_evil(record))
    results = [run_on(command, filled, tmp_path)]
    rewrite(filled, with_evil(replace(record, query_id=EVIL)))
    results.append(run_on(command, filled, tmp_path))
    rewrite(filled, record)
    encrypt(filled, EVIL.encode("ascii", "ignore"))
    results.append(run_on(command, filled, tmp_path))
    assert [output for _, output in results if not is_printable(output)] == []
    if command[0] == "keys":
        assert r"x\u001b[2J" in results[-1][1], "the output names the key id of the parts"


def encrypt(world: World, key: bytes) -> None:
    """Replace the start of parts by headers of encrypted parts with this key id."""
    assert isinstance(world.memory, MemoryStore)
    by_name = world.memory._objects.by_name  # private: the names are taken
    for name in world.memory.list("delta/"):
        header = ENCRYPTED[-1] + bytes([len(key)]) + key
        by_name[name] = header + by_name[name][len(header) :]


@pytest.mark.parametrize("command", [("verify", "{root}"), ("plan", "{root}")])
def test_json_contains_the_exact_characters_in_escaped_form(
    filled: World, tmp_path: Path, command: tuple[str, ...]
) -> None:
    """JSON output contains the exact characters in escaped form."""
    assert isinstance(filled.memory, MemoryStore)
    filled.memory._objects.by_name[EVIL] = b""  # private: no store accepts such a name
    record = newest(filled)
    rewrite(filled, replace(record, members=(RecordedMember(EVIL, EVIL, "host", 2), *record.members)))
    code, output = run_on((*command, "--json"), filled, tmp_path)
    assert code in {0, 1}, output
    assert output.rstrip("\n").isprintable()
    texts = [each for each in strings(json.loads(output)) if "forged" in each]
    assert texts
    assert all(EVIL in each for each in texts)


def strings(json_value: object) -> Iterator[str]:
    """Yield all texts in a JSON value."""
    if isinstance(json_value, str):
        yield json_value
    elif isinstance(json_value, dict):
        for name, value in json_value.items():
            yield name
            yield from strings(value)
    elif isinstance(json_value, list):
        for value in json_value:
            yield from strings(value)


def test_an_error_is_printable_and_keeps_line_breaks_of_its_problem() -> None:
    """An error's text is printable and keeps line breaks only in the problem, such as those of a traceback."""
    error = UserFunctionError(f"it raised\n\t{EVIL}", remedy=EVIL, where=EVIL)
    assert str(error).count("\n") == 3, str(error)
    assert str(error).startswith("it raised\n\tx\\u001b[2J\\u0007\\r\\u202e\\u2028\\u009b2J\\ud800\nstate")
    assert "".join(str(error).split("\n\t")).replace("\n", "").isprintable()
    assert (error.remedy, error.where) == (EVIL, EVIL), "a handler gets the original texts"


def test_a_record_with_control_characters_in_an_id_is_refused(filled: World) -> None:
    """A record with control characters in an id is refused, because errors, logs and delivery ids contain ids."""
    record = newest(filled)
    for field in ("query_id", "commit_id", "log_id", "previous", "dispatch"):
        with pytest.raises(CorruptStateError, match=field):
            decode(encode(replace(record, **{field: EVIL})), paths.record_name(record.sequence))  # type: ignore[arg-type]


def test_log_messages_of_the_package_are_printable(caplog: pytest.LogCaptureFixture) -> None:
    """Log messages of the package are printable, including their exceptions."""
    logger = logging.getLogger("riffle_spark")
    logger.warning("it says %s\na line", EVIL, exc_info=ValueError(EVIL))
    assert "\na line\n" in caplog.text
    assert r"ValueError: x\u001b[2J" in caplog.text
    assert "".join(caplog.text.split("\n")).isprintable(), ascii(caplog.text)
    caplog.clear()
    logger.warning("%s is %d", "it", 7)
    assert caplog.records[0].args == ("it", 7), "printable messages keep their arguments"
