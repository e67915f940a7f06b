"""Options of the stores that a process opens, and what it caches of a store."""

from __future__ import annotations

import subprocess
import sys
import uuid
from dataclasses import fields, replace
from pathlib import Path

import pytest

from riffle_spark.errors import CorruptStateError, OutOfDate
from riffle_spark.messages.upkeep_orders import Follow
from riffle_spark.private_folders import make_private
from riffle_spark.settings import SETTING_LINES as LINES
from riffle_spark.settings import Settings
from riffle_spark.state.objects.options import StoreOptions
from riffle_spark.testing import home_of
from riffle_spark.worker.member_folders import (
    LOCAL_EXECUTOR,
    _executor,
    _executor_id,
    entry_at,
    folder_of,
    manifest_at,
    options_of,
    remove_copies,
    store_of,
)
from riffle_spark.worker.upkeep_piece import run_upkeep
from tests.kit.state.drawn_records import cut_to_last
from tests.kit.worker.upkeep_member import STORE, UpkeepMember


def test_the_store_gets_every_store_setting() -> None:
    """Each store option except four constants has a setting with the same default, and gets its value."""
    settings = Settings(
        s3_endpoint="http://127.0.0.1:1",
        s3_region="north",
        s3_patience=5,
        s3_kms_key="arn:aws:kms:north:1:key/1",
        s3_server_side_encryption="aws:kms",
        s3_requester_pays=True,
        root_file_mode="0640",
        gcs_endpoint="http://127.0.0.1:2",
        azure_endpoint="http://127.0.0.1:3/account",
    )
    options = _by_setting(options_of(settings))
    of_stores = sorted(name for name in LINES if name.startswith(("s3_", "root_", "gcs_", "azure_")))
    assert sorted(options) == sorted(settings.given()) == of_stores
    assert options == settings.given()
    unset = StoreOptions()
    assert _by_setting(unset) == {name: LINES[name].default for name in options}
    assert options_of(Settings()) == unset


def _by_setting(options: StoreOptions) -> dict[str, object]:
    """Return each option that has a setting, by the name of the setting."""
    stores = {"file": "root_file", "s3": "s3", "gcs": "gcs", "azure": "azure"}
    parts = {
        f"{prefix}_{each.name}": getattr(getattr(options, store), each.name)
        for store, prefix in stores.items()
        for each in fields(getattr(options, store))
    }
    return {**parts, "s3_patience": options.patience_seconds}


def test_the_cached_manifest_is_not_used_for_a_recreated_root(tmp_path: Path) -> None:
    """After a root was deleted and created again, a process does not use the cached manifest of the old log."""
    upkept = UpkeepMember(tmp_path)
    upkept.place.seal(0, {1: {"k": 1}})
    upkept.log()
    assert manifest_at(upkept.home, 1).entries
    for name in list(upkept.store.list("")):
        upkept.store.delete([name])
    assert manifest_at(upkept.home, 1).entries, "the last manifest is cached"
    with pytest.raises(CorruptStateError):
        manifest_at(replace(upkept.home, log_id="begun again"), 1)


def test_the_cached_manifest_is_not_used_for_the_next_record(tmp_path: Path) -> None:
    """Only the manifest of the last record is cached, and it is not used for another record."""
    upkept = UpkeepMember(tmp_path)
    for version in range(2):
        upkept.place.seal(version, {1: {"k": version}})
        upkept.log()
    manifests = [manifest_at(upkept.home, sequence).entries for sequence in (1, 2, 1)]
    assert [entry.head.version for entries in manifests for entry in entries.values()] == [0, 1, 0]


def test_cached_records_are_not_used_for_a_restored_root(tmp_path: Path) -> None:
    """After a root was restored from a backup, a process does not use cached records that the backup does not have."""
    upkept = UpkeepMember(tmp_path)
    upkept.place.seal(0, {1: {"k": 1}})
    upkept.log()
    backup, entries = {name: upkept.store.get(name) or b"" for name in upkept.store.list("")}, {**upkept.place.entries}
    upkept.place.seal(1, {1: {"k": 2}})
    upkept.log()
    assert manifest_at(upkept.home, 2).entry(STORE, 1) == upkept.place.entries[1]
    upkept.store.delete(upkept.store.list(""))
    for name, data in backup.items():
        upkept.store.put_if_absent(name, data)
    upkept.place.entries, upkept.log_of = entries, upkept.opened()
    upkept.place.seal(1, {1: {"k": 3}}, epoch=2)
    upkept.log()
    cut = cut_to_last(upkept.place.entries[1], 1)
    assert run_upkeep(replace(upkept.order(follows=(Follow(STORE, 1, cut),)), sequence=2), "1").errors == ()
    assert upkept.held(1) == {"k": 3}


def test_a_record_of_another_driver_is_not_used(tmp_path: Path) -> None:
    """After a restore another driver's record may have a driver's number. The first driver uses no entry of it."""
    upkept = UpkeepMember(tmp_path)
    upkept.place.seal(0, {1: {"k": 1}})
    upkept.log()
    other_head = upkept.place.entries[1].head._replace(version=5)
    with pytest.raises(OutOfDate, match="RIFFLE-1790"):
        entry_at(upkept.home, 1, (STORE, 1), other_head)


def test_only_equal_options_share_a_store() -> None:
    """Equal options share a store and its connections. Other options have another store."""
    home = home_of(f"memory://{uuid.uuid4().hex}", Path("unused"))
    other = replace(home, options=replace(home.options, max_attempts=7))
    assert store_of(home) is store_of(replace(home, application="another"))
    assert store_of(home) is not store_of(other)


def test_the_executor_of_a_worker_is_found_by_its_command_line() -> None:
    """The id of an executor is read from the command line of a parent process. Without one the id is Spark's local."""
    code = "import sys; print(flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code, "--executor-id", "17", "--cores", "2"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as executor:
        assert executor.stdout is not None
        executor.stdout.readline()  # it runs
        assert _executor(executor.pid) == ("17", executor.pid)
        assert _executor_id(executor.pid) == "17"
    assert _executor_id(1) == LOCAL_EXECUTOR


def test_copies_that_a_process_uses_are_not_removed(tmp_path: Path) -> None:
    """Local copies of a root are removed, except those that a live process uses. These are returned."""
    home = home_of(f"file://{tmp_path}/root", tmp_path / "local")
    folder = folder_of(home, "1")
    used = folder.path.parent
    abandoned = used.parent / f"{used.name}-1"
    make_private(abandoned)
    with folder.hold():
        assert remove_copies(tmp_path / "local", home.root) == [used]
        assert (used.exists(), abandoned.exists()) == (True, False)
    assert remove_copies(tmp_path / "local", home.root, keep=used) == []
    assert used.exists()
    assert remove_copies(tmp_path / "local", home.root) == []
    assert not used.exists()
