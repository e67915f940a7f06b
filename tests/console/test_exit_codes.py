"""Exit codes of commands: 3 if state cannot be read, 2 for wrong calls, and 1 for damage."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from riffle_spark.console.main import main
from riffle_spark.state.log import paths
from tests.kit.simulated.world import World, one_row

OF_A_ROOT = (
    ("verify", "{}"),
    ("plan", "{}"),
    ("capacity", "{}", "--rows-per-second", "9", "--rows-per-worker", "9"),
    ("keys", "{}"),
    ("dispatch", "{}", "--to", "hashed"),
    ("adopt", "{}", "--checkpoint", "{checkpoint}"),
    ("rollback", "{}", "--checkpoint", "{checkpoint}", "--to", "1"),
)


def run_on(command: tuple[str, ...], root: str, folder: Path, *more: str) -> tuple[int, str]:
    """Run a command on a root. Return its exit code and its output."""
    (folder / "metadata").write_text('{"id": "query"}')
    done = CliRunner().invoke(main, [*(word.format(root, checkpoint=folder) for word in command), *more])
    return done.exit_code, done.output


@pytest.mark.parametrize("command", OF_A_ROOT)
@pytest.mark.sample(step=3)
def test_an_unreachable_server_or_unreadable_folder_exits_with_3(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that does not answer, missing credentials and an unreadable folder exit with 3 for every command."""
    conf = tmp_path / "riffle.toml"
    region = f"of-{command[0]}"  # clients are cached by their settings and keep their credentials
    conf.write_text(f's3_endpoint = "http://127.0.0.1:9"\ns3_region = "{region}"\ns3_patience = 0\n')
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    result = run_on(command, "s3://bucket/x", tmp_path, "--conf-file", str(conf))
    assert (result[0], "no usable credentials" in result[1]) == (3, True), result
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    result = run_on(command, "s3://other/x", tmp_path, "--conf-file", str(conf), "--s3-endpoint", "http://localhost:9")
    assert (result[0], "after 4 attempts" in result[1]) == (3, True), result
    result = run_on(command, f"file://{tmp_path}/{'x' * 300}", tmp_path)
    assert (result[0], "this user may read" in result[1], "write" in result[1]) == (3, True, False), result


CALLED_WRONGLY = (
    *(tuple(word.replace("{}", root) for word in command) for command in OF_A_ROOT for root in ("", "/no/url")),
    ("verify", "{}", "--checkpoint", ""),
    ("verify", "{}", "--s3-endpoint", ""),
    ("rollback", "{}", "--checkpoint", "{checkpoint}", "--to", "abc"),
    ("rollback", "{}", "--checkpoint", "", "--to", "1"),
    ("adopt", "{}", "--checkpoint", "{checkpoint}", "--previous", ""),
    ("adopt", "{}", "--checkpoint", "{checkpoint}", "--empty", "--key-groups", "99999"),
    ("dispatch", "{}", "--to", "hashed", "--partition-of", "nowhere:at_all"),
    ("verify", "{}", "{}"),
    ("verify",),
    ("verify", "--root", "{}"),
    ("verify", "{}", "--checkpoint", "foo://x"),
    ("policy", "s3://bucket/a", "--kms-key", "alias/a"),
    ("plan", "--add", "1"),
    ("capacity", "--rows-per-second", "9", "--rows-per-worker", "9"),
    ("moves", "{}", "k", "--key-group", "0"),
    ("savepoint", "create", "{}", "--name", "a", "--version", "newest"),
    ("shadow", "--query", "a:b", "--folder", "/tmp/compared"),
)


@pytest.mark.parametrize("command", CALLED_WRONGLY, ids=" ".join)
def test_a_wrong_call_exits_with_2_before_the_state_is_read(command: tuple[str, ...], tmp_path: Path) -> None:
    """A wrong call exits with 2 before the state is read, because monitoring treats 1 as damage."""
    root = f"file://{tmp_path}/state"
    World(tmp_path / "local", root=root).batch(0, one_row(0))
    code, output = run_on(command, root, tmp_path)
    assert (code, "Usage: " in output) == (2, True), output


def test_invalid_settings_are_a_wrong_call(tmp_path: Path) -> None:
    """Invalid settings are a wrong call, because nothing is known about the state."""
    (tmp_path / "riffle.toml").write_text("retained_versions = -1\n")
    code, output = run_on(
        ("verify", "{}"), f"file://{tmp_path}/state", tmp_path, "--conf-file", f"{tmp_path}/riffle.toml"
    )
    assert (code, "retained_versions" in output) == (2, True), output


def test_a_missing_encryption_key_exits_with_3(tmp_path: Path) -> None:
    """Parts whose encryption key is missing exit with 3, and with 1 only if there is other damage."""
    for key, text in (("a", "A"), ("b", "B")):
        (tmp_path / f"{key}.toml").write_text(f'encryption_keys = "file:{tmp_path}/{key}"\n')
        (tmp_path / key).write_text(f"{key} = {text * 43}=\n")
    root = f"file://{tmp_path}/state"
    world = World(tmp_path / "local", root=root, encryption_keys=f"file:{tmp_path}/a")
    for version in range(3):
        world.batch(version, one_row(version))
    assert run_on(("verify", "{}"), root, tmp_path, "--conf-file", str(tmp_path / "a.toml"))[0] == 0
    (tmp_path / "none.toml").write_text("")
    assert run_on(("verify", "{}"), root, tmp_path, "--conf-file", str(tmp_path / "none.toml"))[0] == 3
    assert run_on(("verify", "{}"), root, tmp_path, "--conf-file", str(tmp_path / "b.toml"))[0] == 3
    world.memory.delete([paths.record_name(1)])
    assert run_on(("verify", "{}"), root, tmp_path, "--conf-file", str(tmp_path / "b.toml"))[0] == 1
    assert run_on(("verify",), root, tmp_path)[0] == 2
