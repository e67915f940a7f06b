"""Commands never show credentials that a checkpoint's URI contains."""

from __future__ import annotations

import json
import logging
import traceback
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from riffle_spark.console.main import main
from riffle_spark.errors import ConfigError, UnavailableError
from riffle_spark.offline.checkpoint import Checkpoint
from riffle_spark.offline.recovery import adopt
from riffle_spark.state.objects.memory import MemoryStore
from riffle_spark.state.objects.open import open_store
from tests.kit.servers.object_server import BUCKET, ObjectServer
from tests.kit.simulated.world import World, one_row

PLANTED = "PLANTEDPLANTED00"
BATCHES = 4


@pytest.fixture
def filled(world: World) -> World:
    """Return a query with some batches."""
    for version in range(BATCHES):
        world.batch(version, one_row(version))
    return world


def run_and_collect(*arguments: str) -> tuple[Result, str]:
    """Run a command. Return its result, and its output with the texts of all raised errors."""
    done = CliRunner().invoke(main, list(arguments))
    texts, error = [done.output], done.exception
    while error is not None:
        texts += [*traceback.format_exception_only(error), repr(error)]
        error = error.__cause__ or error.__context__
    return done, "".join(texts)


def commands(root: str, checkpoint: str, conf: Path) -> list[list[str]]:
    """Return every command that takes a checkpoint."""
    common = ["--conf-file", str(conf)]
    return [
        ["verify", root, "--checkpoint", checkpoint, *common],
        ["rollback", root, "--checkpoint", checkpoint, "--to", "0", *common],
        ["adopt", root, "--checkpoint", checkpoint, *common],
        ["rollback", root, "--checkpoint", checkpoint, "--to", "0", "--execute", *common],
    ]


WRONG = (
    f"s3://AKIA:{PLANTED}@bucket/x",
    f"s3://bucket/x?secret_key={PLANTED}&endpoint_override=127.0.0.1:9&scheme=http",
    f"hdfs://user:{PLANTED}@127.0.0.1:9/x",
    f"hdfs://127.0.0.1:9/x?token={PLANTED}",
    f"foo://u:{PLANTED}@h/x",
    f"file://u:{PLANTED}@h/x",
    f"s3:///AKIA:{PLANTED}@bucket/x",
    f"dbfs:/u:1/{PLANTED}@h/x",
)
RETRIED = WRONG[1:2]
"""URIs whose endpoint Arrow's client retries for three seconds in each command."""


@pytest.mark.usefixtures("aws_environment")
@pytest.mark.parametrize(
    ("checkpoint", "endpoint"),
    [
        (WRONG[0], f"s3_endpoint = 'http://u:{PLANTED}@h:9'"),
        *(
            pytest.param(uri, "s3_endpoint = 'http://127.0.0.1:9'", marks=pytest.mark.long if uri in RETRIED else ())
            for uri in WRONG
        ),
    ],
)
def test_a_secret_in_the_uri_of_a_checkpoint_is_not_repeated(
    filled: World, tmp_path: Path, caplog: pytest.LogCaptureFixture, checkpoint: str, endpoint: str
) -> None:
    """A secret in a checkpoint's URI appears in no output, log or error, whether or not the URI can be reached."""
    conf = tmp_path / "riffle.toml"
    conf.write_text(f"{endpoint}\ns3_patience = 0\n")
    with caplog.at_level(logging.DEBUG):
        for arguments in commands(filled.home.root, checkpoint, conf):
            done, output = run_and_collect(*arguments)
            assert done.exit_code in {1, 2, 3}, output
            assert PLANTED not in output, arguments[0]
            assert "Traceback" not in output
    assert PLANTED not in caplog.text + repr(Checkpoint(checkpoint))


def test_plans_and_findings_mask_credentials_in_a_checkpoint_uri(
    filled: World, tmp_path: Path, object_server: ObjectServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Plans and findings show a checkpoint's URI with its credentials and query masked."""
    place, there = f"{BUCKET}/{tmp_path.name}", open_store(f"s3://{BUCKET}/{tmp_path.name}", object_server.options)
    for name in ("offsets", "commits"):
        for batch in range(BATCHES - 2):
            there.put_if_absent(f"{name}/{batch}", f"{name}-{batch}".encode())
    there.put_if_absent("metadata", json.dumps({"id": "query"}).encode())
    address = object_server.endpoint.removeprefix("http://")
    checkpoint = f"s3://AKIA:{PLANTED}@{place}?endpoint_override={address}&scheme=http&region=us-east-1"
    conf = tmp_path / "riffle.toml"
    conf.write_text("")
    shown = f"s3://***@{place}?***"
    with caplog.at_level(logging.DEBUG):
        outcomes = [run_and_collect(*arguments) for arguments in commands(filled.home.root, checkpoint, conf)]
    assert [done.exit_code for done, _ in outcomes] == [1, 0, 1, 0], outcomes
    assert not any(PLANTED in output for _, output in outcomes)
    assert all(shown in output for _, output in outcomes[:2])
    assert PLANTED not in caplog.text
    assert Checkpoint(checkpoint).next_batch() == 1, "the checkpoint was rolled back"


@pytest.mark.parametrize("checkpoint", ["/tmp/a\0b", "file:///a\0b", "s3:b/x"])
def test_a_path_that_a_file_system_cannot_use_is_unavailable(checkpoint: str) -> None:
    """A path that a file system cannot use raises UnavailableError, not an error of Arrow."""
    spark = Checkpoint(checkpoint)
    assert spark.find_query_id() is None
    for ask in (spark.next_batch, spark.newest_source_entries):
        with pytest.raises(UnavailableError, match="RIFFLE-0125"):
            ask()


@pytest.mark.parametrize("checkpoint", ["", "file:///", "s3a://"])
def test_a_checkpoint_path_without_a_folder_is_a_usage_error(filled: World, tmp_path: Path, checkpoint: str) -> None:
    """A checkpoint path without a folder, which an empty variable gives, is a usage error."""
    conf = tmp_path / "riffle.toml"
    conf.write_text("s3_endpoint = 'http://127.0.0.1:9'\n")
    for arguments in commands(filled.home.root, checkpoint, conf):
        done, output = run_and_collect(*arguments)
        assert (done.exit_code, " no folder" in output) == (2, True), output
        assert "riffle adopt" not in output, "an adoption would give the state to another query"
        assert [line for line in output.splitlines() if line.startswith("state")] == []


@pytest.mark.parametrize("metadata", ['{"id": "\\u001b[2J"}', '{"id": 7}', "\xff"])
def test_an_invalid_query_id_is_refused(filled: World, tmp_path: Path, metadata: str) -> None:
    """A query id with control characters, of another type or in another encoding is refused."""
    (tmp_path / "metadata").write_text(metadata, encoding="latin-1")
    done, shown = run_and_collect("adopt", filled.home.root, "--checkpoint", str(tmp_path), "--execute")
    assert (done.exit_code, "is not a checkpoint" in shown) == (1, True), shown


def test_control_characters_in_object_names_are_escaped(filled: World) -> None:
    """An object name with control characters is escaped and adds no line to the findings of `verify`."""
    assert isinstance(filled.memory, MemoryStore)
    filled.memory._objects.by_name["elsewhere\x1b[2J\nstate: x"] = b""
    done, shown = run_and_collect("verify", filled.home.root)
    assert done.exit_code == 0
    assert "\x1b" not in shown
    assert [line for line in shown.splitlines() if line.startswith("state")] == []
    assert r"elsewhere\u001b[2J\nstate: x" in shown


@pytest.mark.parametrize("wrong", [{"key_groups": 0}, {"dispatch": "keys"}])
def test_adopt_empty_refuses_settings_that_no_query_can_run_with(tmp_path: Path, wrong: dict[str, Any]) -> None:
    """`adopt --empty` refuses settings that no query can run with, because its record could not be undone."""
    (tmp_path / "metadata").write_text('{"id": "query"}')
    root = f"memory://{tmp_path.name}"
    for execute in (False, True):
        with pytest.raises(ConfigError, match="RIFFLE-0249"):
            adopt(root, str(tmp_path), empty=True, execute=execute, **wrong)
    assert open_store(root).list("") == []
