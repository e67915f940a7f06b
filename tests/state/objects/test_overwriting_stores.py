"""A claim detects a store that overwrites objects, on which two drivers would undo each other's commits."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest

from riffle_spark.errors import ConfigError, UnavailableError
from riffle_spark.protocol.batch.records import Stamp, claim_record, first_record
from riffle_spark.state.log import paths
from riffle_spark.state.log.log import Log
from riffle_spark.state.log.manifest import Manifest
from riffle_spark.state.log.record import Kind
from riffle_spark.state.objects.memory import MemoryStore
from riffle_spark.state.objects.open import open_store
from riffle_spark.state.objects.options import S3Options
from riffle_spark.state.objects.store import ObjectStore
from tests.kit.servers.careless_proxy import careless_proxy
from tests.kit.servers.object_server import ObjectServer
from tests.kit.state.faulty_store import Fault, FaultyStore

FIRST = first_record("query", 8, "key_group", Stamp("c", 0))


def claimed(store: ObjectStore, root: str) -> Log:
    """Claim the log below a root."""
    log = Log(store, root)
    log.append(claim_record(log.open(), "query", 8, "key_group", Stamp(uuid.uuid4().hex, 0)), log.manifest)
    return log


@pytest.mark.cluster
def test_an_s3_server_that_ignores_if_none_match_is_refused(object_server: ObjectServer) -> None:
    """The first claim is refused with the endpoint and a remedy; without the proxy the same root is accepted."""
    root = object_server.new_root()
    with careless_proxy(object_server.endpoint) as endpoint:
        store = open_store(root, replace(object_server.options, s3=S3Options(endpoint=endpoint)))
        with pytest.raises(ConfigError, match="overwrites objects") as caught:
            claimed(store, root)
        assert endpoint in caught.value.problem
        assert "If-None-Match" in caught.value.remedy
        assert caught.value.where.startswith(root)
        with pytest.raises(ConfigError, match="overwrites objects"):
            claimed(store, root)
    assert claimed(open_store(root, object_server.options), root).tail is not None


@pytest.mark.parametrize("kind", ["claim", "rollback"])
def test_a_claim_or_rollback_detects_a_store_that_overwrites(kind: Kind) -> None:
    """A claim or rollback puts its record twice with the same bytes, and so detects a store that overwrites."""
    store = FaultyStore(MemoryStore(), [Fault("overwrites", times=None)])
    log = Log(store, "memory://x")
    log.open()
    with pytest.raises(ConfigError, match="RIFFLE-0459"):
        log.append(replace(FIRST, kind=kind), Manifest())
    assert log.read(0).kind == kind
    assert [name for method, name in store.calls if method == "put"] == [paths.record_name(0)] * 2


def test_a_batch_record_is_put_once() -> None:
    """A batch record is put once, because only claims and rollbacks check the store."""
    store = FaultyStore(MemoryStore())
    log = claimed(store, "memory://x")
    store.calls.clear()
    assert log.tail is not None
    log.append(replace(log.tail, kind="batch", version=0), log.manifest)
    assert store.calls == [("put", paths.record_name(1))]


def test_the_overwrite_check_is_repeated_after_a_lost_request() -> None:
    """The check is repeated after a lost request, and the start fails if the store does not answer."""
    store = FaultyStore(MemoryStore())
    store.script(Fault("request_lost", "put", paths.record_name(0), skip=1, times=2))
    claimed(store, "memory://x")
    store.script(Fault("request_lost", "put", paths.record_name(1), skip=1, times=None))
    with pytest.raises(UnavailableError):
        claimed(store, "memory://x")
