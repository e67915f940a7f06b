"""Objects are copied between two stores of one service: files, S3, GCS and Azure."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from riffle_spark.state.objects.directory import DirectoryStore
from riffle_spark.state.objects.memory import MemoryStore
from riffle_spark.state.objects.open import open_store
from riffle_spark.state.objects.options import S3Options, StoreOptions
from riffle_spark.state.objects.remote import Patience
from riffle_spark.state.objects.s3 import S3Store
from riffle_spark.state.objects.store import CopyingStore, ObjectStore
from tests.kit.servers.object_server import ObjectServer

SERVERS = {"s3": "object_server", "gcs": "gcs_server", "azure": "azure_server"}
REMOTE = [pytest.param(name, marks=pytest.mark.cluster) for name in ("s3", "gcs", "azure")]
NAMES = ["log/00000000000000000007", "delta/a b+c", "key=ü&x/é", "<tag>/'quoted\"", "x#1?x=y", "a%20b"]


@pytest.fixture(params=["file", *REMOTE])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], ObjectStore]:
    """Return a function that opens another empty root of one service at each call."""
    if request.param in SERVERS:
        server = request.getfixturevalue(SERVERS[request.param])
        return lambda: open_store(server.new_root(), server.options)
    return lambda: open_store(f"file://{tmp_path}/{uuid.uuid4().hex}")


def test_copied_objects_keep_their_names(stores: Callable[[], ObjectStore]) -> None:
    """Objects are copied under their names, also twice; a copy of a missing object returns False."""
    source, target = stores(), stores()
    assert isinstance(target, CopyingStore)
    assert target.can_copy_from(source)
    bodies = {name: os.urandom(number * 1000) for number, name in enumerate(NAMES)}
    for name, body in bodies.items():
        assert source.put_if_absent(name, body)
        for _ in range(2):
            assert target.copy_from(source, name)
    assert target.list("") == sorted(NAMES)
    assert {name: target.get(name) for name in NAMES} == bodies
    assert not target.copy_from(source, "delta/absent")
    assert not target.exists("delta/absent")
    source.delete(NAMES)
    assert {name: target.get(name) for name in NAMES} == bodies, "copies do not depend on the source objects"


def test_a_store_copies_only_from_its_own_service(tmp_path: Path) -> None:
    """A store copies only from stores of its own service."""
    files, memory = DirectoryStore(tmp_path), MemoryStore()
    objects = S3Store("bucket", "prefix", StoreOptions(s3=S3Options(endpoint="http://127.0.0.1:1")))
    assert not files.can_copy_from(memory)
    assert not files.can_copy_from(objects)
    assert not objects.can_copy_from(files)
    assert not objects.can_copy_from(S3Store("bucket", "other", StoreOptions()))


@pytest.mark.cluster
class TestS3:
    """Copies that only S3 has to test."""

    def test_a_copy_is_encrypted_as_the_targets_setting_says(self, object_server: ObjectServer) -> None:
        """A copy is encrypted as the target's setting says, however the source is encrypted."""
        options = object_server.options
        encrypting = StoreOptions(
            s3=S3Options(endpoint=options.s3.endpoint, region=options.s3.region, server_side_encryption="AES256"),
            max_attempts=2,
            patience_seconds=0,
        )
        root, new_root = object_server.new_root(), object_server.new_root()
        open_store(root, encrypting).put_if_absent("delta/a", b"x")
        target = open_store(new_root, encrypting)
        assert isinstance(target, S3Store)
        assert target.copy_from(open_store(root, encrypting), "delta/a")
        head = target._call("head_object", {"Key": f"{target.prefix}delta/a"}, Patience(encrypting))
        assert head["ServerSideEncryption"] == "AES256"
