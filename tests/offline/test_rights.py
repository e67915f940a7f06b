"""`riffle policy` prints the least rights of a job, and a job runs with these rights only."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from click.testing import CliRunner

from riffle_spark.console.main import main
from riffle_spark.errors import ConfigError
from riffle_spark.observe.status_exporter import StatusExporter
from riffle_spark.offline.recovery import rollback
from riffle_spark.offline.rights import iam_policy
from riffle_spark.offline.root_status import read_status
from riffle_spark.offline.verify import verify
from riffle_spark.protocol.batch.mailbox import last_number
from riffle_spark.state.log import paths
from riffle_spark.state.objects.open import open_store
from tests.kit.servers.careless_proxy import proxy
from tests.kit.servers.object_server import ObjectServer
from tests.kit.simulated.world import World, one_row

pytestmark = pytest.mark.usefixtures("aws_environment")
Statement = Mapping[str, object]
KEY = "arn:aws:kms:eu-west-1:123456789012:key/mrk-1234abcd"
_ACTIONS = {"GET": "s3:GetObject", "HEAD": "s3:GetObject", "PUT": "s3:PutObject"}


class Guard:
    """A proxy filter that allows requests by a policy, like IAM, and records used actions and denied requests."""

    def __init__(self, policy: Mapping[str, object]) -> None:
        self._statements = cast("Sequence[Statement]", policy["Statement"])
        self.used: set[str] = set()
        self.denied: list[str] = []

    def __call__(self, method: str, path: str, body: bytes) -> bool:
        """Return whether the policy allows everything that a request needs."""
        required = list(required_rights(method, path, body))
        denied = [f"{action} {arn}" for action, arn, prefix in required if not self._allows(action, arn, prefix)]
        self.used |= {action for action, _, _ in required} if not denied else set()
        self.denied += denied
        return bool(required) and not denied

    def _allows(self, action: str, arn: str, prefix: str | None) -> bool:
        for stated in self._statements:
            fits = action in cast("list[str]", stated["Action"])
            fits = fits and any(like(arn, pattern) for pattern in cast("list[str]", stated["Resource"]))
            conditions = cast("Mapping[str, Mapping[str, list[str]]]", stated.get("Condition", {}))
            patterns = conditions.get("StringLikeIfExists", {}).get("s3:prefix", ["*"])
            if fits and (prefix is None or any(like(prefix, pattern) for pattern in patterns)):
                return True
        return False


def like(text: str, pattern: str) -> bool:
    """Return whether a text matches a pattern with stars."""
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text) is not None


def required_rights(method: str, path: str, body: bytes) -> Iterator[tuple[str, str, str | None]]:
    """Yield what a request to S3 needs: action, resource, and the listed prefix."""
    url = urlsplit(path)
    bucket, _, key = unquote(url.path).lstrip("/").partition("/")
    query, arn = parse_qs(url.query, keep_blank_values=True), f"arn:aws:s3:::{bucket}"
    if method == "POST" and "delete" in query:
        for name in re.findall(rb"<Key>([^<]*)</Key>", body):
            yield "s3:DeleteObject", f"{arn}/{name.decode()}", None
    elif method == "GET" and not key:
        yield "s3:ListBucket", arn, query.get("prefix", [""])[0]
    elif method in _ACTIONS and key and not query:
        yield _ACTIONS[method], f"{arn}/{key}", None
        yield from [("s3:ListBucket", arn, None)] if method != "PUT" else []  # lets S3 answer that an object is absent


DESTRUCTIVE = ("adopt", "rollback", "dispatch", "keys")


def reading_commands(root: str, folder: Path) -> dict[str, list[str]]:
    """Return all commands on a root, the destructive ones without ``--execute``."""
    (folder / "other").mkdir(exist_ok=True)
    (folder / "other" / "metadata").write_text('{"id": "another"}')
    (folder / "keys").write_text(f"plain\na = {'A' * 43}=\n")
    (folder / "keys").chmod(0o600)
    (folder / "riffle.toml").write_text(f'encryption_keys = "file:{folder}/keys"\n')
    checkpoint, at = str(folder / "checkpoint"), [root]
    return {
        "verify": ["verify", *at], "plan": ["plan", *at], "what if": ["plan", *at, "--add", "1", "--converge"],
        "capacity": ["capacity", *at, "--rows-per-second", "9", "--rows-per-worker", "9"],
        "keys counted": ["keys", *at], "keys": ["keys", *at, "--rewrite"],
        "dispatch": ["dispatch", *at, "--to", "key_group", "--key-groups", "16"],
        "rollback": ["rollback", *at, "--checkpoint", checkpoint, "--to", "35"],
        "adopt": ["adopt", *at, "--checkpoint", str(folder / "other")],
        "requests": ["requests", *at], "status": ["status", *at], "log": ["log", *at], "stores": ["stores", *at],
        "where": ["where", *at, "key-1"], "ls": ["ls", root],
    }  # fmt: skip


def watch_and_steer(world: World, status: StatusExporter, version: int) -> None:
    """Let the driver write and replace its status, and a command its requests, in certain batches."""
    if version in (0, 20):
        world.clock.advance(100)
        status.export(None, world.driver.facts(), ())
    if version in (1, 2):
        steered = CliRunner().invoke(main, ["rebalance", world.home.root, "--json"])
        assert steered.exit_code == 0, steered.output
        assert json.loads(steered.output)["number"] == version


def files_below(folder: Path) -> dict[str, bytes]:
    """Return the contents of all files below a folder."""
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.cluster
def test_a_job_runs_with_only_the_rights_of_the_printed_policy(
    object_server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches, snapshots, deletes, scans, restarts, rollbacks and commands work with only the rights of the printed
    policy.
    """
    root = object_server.new_root()
    printed = json.loads(CliRunner().invoke(main, ["policy", root]).output)
    guard = Guard(printed)
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    (checkpoint / "metadata").write_text('{"id": "query"}')
    with proxy(object_server.endpoint, guard) as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        monkeypatch.setenv("AWS_DEFAULT_REGION", f"us-east-{uuid.uuid4().hex[:4]}")
        world = World(tmp_path / "local", root=root, snapshot_chain_links=2, control="on", status_page=True)
        monkeypatch.setattr("time.time_ns", lambda: world.clock.wall_ms() * 1_000_000)
        moves = world.driver.ownership.moves.recent
        status = StatusExporter(
            open_store(root, world.home.options), lambda: world.settings, moves, "test", lambda _: None
        )
        for version in range(36):
            world.batch(version, one_row(version, f"key-{version % 3}"))
            watch_and_steer(world, status, version)
        assert read_status(root).facts.answered == last_number(world.driver.mailbox.answers) == 2
        assert {paths.MAILBOX, paths.STATUS, paths.STATUS_PAGE} <= set(open_store(root).list(""))
        world.cluster.lose("1", disk=True)
        world.start()
        world.batch(36, one_row(36, "key-0"))
        rollback(root, 35, str(checkpoint), execute=True)
        world.start()
        world.batch(36, one_row(36, "key-1"))
        assert verify(root).is_whole
        assert guard.used == {"s3:ListBucket", "s3:GetObject", "s3:PutObject", "s3:DeleteObject"}
        assert guard.denied == []
        for call in (lambda other: other.list(""), lambda other: other.put_if_absent("log/1", b"x")):
            with pytest.raises(ConfigError, match="denied"):
                call(open_store(f"{root}-elsewhere"))
        reading = Guard(iam_policy(root, read_only=True))
    with proxy(object_server.endpoint, reading) as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        monkeypatch.setenv("AWS_DEFAULT_REGION", f"us-east-{uuid.uuid4().hex[:4]}")
        assert verify(root).is_whole
        with pytest.raises(ConfigError, match="denied"):
            open_store(root).put_if_absent("log/1", b"x")
        before, checkpoints = open_store(root).list(""), files_below(tmp_path / "checkpoint")
        for name, arguments in reading_commands(root, tmp_path).items():
            done = CliRunner().invoke(main, [*arguments, "--conf-file", str(tmp_path / "riffle.toml")])
            assert done.exit_code == 0, f"{name}: {done.output}"
        denied = f"s3:PutObject arn:aws:s3:::{root.removeprefix('s3://')}/log/1"
        assert reading.denied == [denied] * 2, "a denied request is sent once more with credentials that are read again"
        assert reading.used == {"s3:ListBucket", "s3:GetObject"}
        for name, arguments in reading_commands(root, tmp_path).items():
            if name in DESTRUCTIVE:
                done = CliRunner().invoke(main, [*arguments, "--execute", "--conf-file", str(tmp_path / "riffle.toml")])
                assert (done.exit_code, "put_object was denied" in done.output) == (3, True), f"{name}: {done.output}"
        assert (open_store(root).list(""), files_below(tmp_path / "checkpoint")) == (before, checkpoints)


def test_a_policy_names_only_the_resources_of_the_root() -> None:
    """A policy names the bucket, the prefix, the KMS key and the AWS partition, and no other resource."""
    text = CliRunner().invoke(main, ["policy", "s3://bkt/p/q", "--kms-key", KEY]).output
    listing, objects, key = json.loads(text)["Statement"]
    assert listing["Resource"] == ["arn:aws:s3:::bkt"]
    assert listing["Condition"] == {"StringLikeIfExists": {"s3:prefix": ["p/q/*"]}}
    assert objects["Resource"] == ["arn:aws:s3:::bkt/p/q/*"]
    assert (key["Action"], key["Resource"]) == (["kms:GenerateDataKey", "kms:Decrypt"], [KEY])
    whole = json.dumps(iam_policy("s3://bkt", partition="aws-cn"))
    assert '"arn:aws-cn:s3:::bkt/*"' in whole
    assert "kms" not in whole


def test_a_directory_bucket_grants_only_sessions() -> None:
    """A directory bucket has one right, to open a session. It can be limited to reading, but not to a prefix."""
    root = "s3://bkt--use1-az4--x-s3/p"
    (session,) = json.loads(CliRunner().invoke(main, ["policy", root]).output)["Statement"]
    assert (session["Action"], "Condition" in session) == (["s3express:CreateSession"], False)
    assert session["Resource"] == ["arn:aws:s3express:*:*:bucket/bkt--use1-az4--x-s3"]
    (reading,) = cast("Sequence[Statement]", iam_policy(root, read_only=True)["Statement"])
    assert reading["Condition"] == {"StringEquals": {"s3express:SessionMode": "ReadOnly"}}


@pytest.mark.parametrize(
    "options",
    [
        ["--kms-key", "arn:aws:kms:x:1:key/*"],
        ["--kms-key", KEY.replace("key/mrk-1234abcd", "alias/riffle")],
        ["--kms-key", KEY, "--partition", "aws-cn"],
        ["--partition", "foo"],
    ],
)
def test_policy_arguments_that_grant_too_much_or_nothing_are_refused(options: list[str]) -> None:
    """A key pattern, a key alias and a wrong partition are refused, because they would grant too much or nothing."""
    done = CliRunner().invoke(main, ["policy", "s3://bkt/p", *options])
    assert (done.exit_code, options[0] in done.output) == (2, True), done.output


@pytest.mark.parametrize("root", ["file:///a", "s3://bkt/p*"])
def test_a_root_with_a_pattern_is_refused(root: str) -> None:
    """A root with a pattern is refused, because the policy would grant more."""
    assert CliRunner().invoke(main, ["policy", root]).exit_code == 2
    with pytest.raises(ConfigError):
        iam_policy(root)


@pytest.mark.parametrize(("flags", "permissions"), [([], 4), (["--read-only"], 2)])
def test_a_google_cloud_role_names_permissions_and_prefix(flags: list[str], permissions: int) -> None:
    """A Google Cloud role names permissions and the prefix, and grants creates and deletes only if the job writes."""
    rights = json.loads(CliRunner().invoke(main, ["policy", "gs://bkt/p/q", *flags]).output)
    granted = rights["role"]["includedPermissions"]
    assert len(granted) == permissions
    assert ("storage.objects.create" in granted) == ("storage.objects.delete" in granted) == (not flags)
    assert '"projects/_/buckets/bkt/objects/p/q/"' in rights["binding"]["condition"]["expression"]
    assert rights["binding"]["resource"] == "gs://bkt"


@pytest.mark.parametrize(
    ("root", "account"), [("abfss://state@acc.dfs.core.windows.net/p", "acc"), ("az://state/p", "ACCOUNT")]
)
def test_an_azure_role_names_data_actions_and_container(root: str, account: str) -> None:
    """An Azure role names data actions and the container, and no action on the account."""
    rights = json.loads(CliRunner().invoke(main, ["policy", root]).output)
    assert [action.rpartition("/")[2] for action in rights["DataActions"]] == ["read", "write", "delete"]
    assert rights["Actions"] == []
    (scope,) = rights["AssignableScopes"]
    assert scope.endswith(f"/storageAccounts/{account}/blobServices/default/containers/state")
    reading = json.loads(CliRunner().invoke(main, ["policy", root, "--read-only"]).output)
    assert [action.rpartition("/")[2] for action in reading["DataActions"]] == ["read"]


def test_an_aws_key_is_refused_for_another_cloud() -> None:
    """An AWS key is refused for another cloud."""
    assert CliRunner().invoke(main, ["policy", "gs://bkt/p", "--kms-key", KEY]).exit_code == 2
