"""Behaviour that only objects stored as files have."""

from __future__ import annotations

import os
import pickle
import resource
import stat
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from riffle_spark.errors import ConfigError, RefusedError, UnavailableError
from riffle_spark.settings import Settings
from riffle_spark.state.objects.directory import DirectoryStore
from riffle_spark.state.objects.open import open_store
from riffle_spark.state.objects.store import ObjectStore
from riffle_spark.worker.member_folders import options_of


class _Durable:
    """A model of a disk after a power loss: it has the bytes of files and the entries of directories as of their last
    sync. All calls are passed on to the real file system.
    """

    def __init__(self) -> None:
        self._sync = os.fsync
        self._link = os.link
        self._bytes: dict[int, bytes] = {}
        self._entries: dict[Path, set[str]] = {}
        self.linked: list[tuple[Path, bytes | None]] = []
        """Each linked name with the bytes that were durable at that time."""

    def sync(self, file: int) -> None:
        """Sync a file or a directory."""
        path = Path(f"/proc/self/fd/{file}").readlink()
        if path.is_dir():
            self._entries[path] = {entry.name for entry in path.iterdir()}
        else:
            self._bytes[path.stat().st_ino] = path.read_bytes()
        self._sync(file)

    def link(self, source: Path, target: Path) -> None:
        """Link a file to another name."""
        self.linked.append((target, self._bytes.get(source.stat().st_ino)))
        self._link(source, target)

    def read(self, path: Path, top: Path) -> bytes | None:
        """Return the durable bytes of a file, or ``None`` if they or a directory entry below ``top`` would be lost."""
        for entry in (path, *path.parents):
            if entry == top:
                return self._bytes.get(path.stat().st_ino)
            if entry.name not in self._entries.get(entry.parent, ()):
                return None
        return None


class TestDirectory:
    """Objects that are stored as files."""

    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        """Return the path of a root that does not exist yet."""
        return tmp_path / "root"

    @pytest.fixture
    def store(self, root: Path) -> ObjectStore:
        """Return a store on this root."""
        return open_store(f"file://{root}")

    def test_an_object_is_a_file_with_its_name(self, store: ObjectStore, root: Path) -> None:
        """An object is a file with the object's name, so that state can be read without riffle."""
        store.put_if_absent("totals/key_group=0042/snapshot/7", b"abc")
        assert (root / "totals/key_group=0042/snapshot/7").read_bytes() == b"abc"

    def test_a_put_is_durable_before_it_returns(
        self, store: ObjectStore, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A put syncs the file's bytes before it links the name, and then each directory on the way, so that a power
        loss right after the put loses nothing.
        """
        disk = _Durable()
        monkeypatch.setattr(os, "fsync", disk.sync)
        monkeypatch.setattr(os, "link", disk.link)
        for name in ("log/1", "totals/key_group=0042/snapshot/7", "log/2"):
            assert store.put_if_absent(name, name.encode())
            assert disk.read(root / name, root.parent) == name.encode()
            assert disk.linked[-1] == (root / name, name.encode()), "the bytes are durable before the name exists"

    def test_a_replaced_object_is_durable_before_the_call_returns(
        self, store: ObjectStore, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A replacement syncs the new bytes before the rename and the folder after it, so that a power loss does not
        bring back answered requests.
        """
        store.put_if_absent("requests.json", b"first")
        stored = store.get_if_changed("requests.json")
        assert stored is not None
        events: list[tuple[str, Path]] = []
        rename = os.replace

        def sync(file: int) -> None:
            path = Path(f"/proc/self/fd/{file}").readlink()
            events.append(("synced", path if path == root else path.parent))

        def move(source: Path, target: Path) -> None:
            events.append(("replaced", Path(target)))
            rename(source, target)

        monkeypatch.setattr(os, "fsync", sync)
        monkeypatch.setattr(os, "replace", move)
        assert store.replace_if_unchanged("requests.json", b"second", stored.tag)
        unfinished = root / ".unfinished"
        assert events[-3:] == [("synced", unfinished), ("replaced", root / "requests.json"), ("synced", root)]
        assert (root / "requests.json").read_bytes() == b"second"

    def test_a_put_that_finds_its_name_taken_syncs_all_directories_above(
        self, store: ObjectStore, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A put that finds its name taken syncs all directories above, because the process that wrote the name may
        crash before it syncs them.
        """
        store.put_if_absent("log/1", b"another's")
        synced: list[Path] = []
        monkeypatch.setattr(os, "fsync", lambda file: synced.append(Path(f"/proc/self/fd/{file}").readlink()))
        assert not store.put_if_absent("log/1", b"ours")
        assert synced == [root / "log", root]

    def test_an_interrupted_write_is_never_listed_and_removed_after_a_day(self, store: ObjectStore, root: Path) -> None:
        """A write that a crash cut off is never listed, and is removed after a day."""
        store.put_if_absent("log/1", b"abc")
        old, young = root / ".unfinished/old", root / ".unfinished/young"
        for leftover in (old, young):
            leftover.write_bytes(b"ab")
        os.utime(old, (0, time.time() - 25 * 3600))
        assert store.list("") == ["log/1"]
        open_store(f"file://{root}").put_if_absent("log/2", b"abc")
        assert (old.exists(), young.exists()) == (False, True)

    def test_a_delete_removes_empty_directories_except_the_root(self, store: ObjectStore, root: Path) -> None:
        """A delete removes directories that become empty, except the root."""
        store.put_if_absent("delta/1/a", b"")
        store.put_if_absent("delta/2/a", b"")
        store.delete(["delta/1/a"])
        assert [path.name for path in (root / "delta").iterdir()] == ["2"]
        store.delete(["delta/2/a"])
        assert root.exists()
        assert not (root / "delta").exists()

    def test_a_put_succeeds_if_a_concurrent_delete_removes_its_directory(self, store: ObjectStore) -> None:
        """A put does not fail if a concurrent delete removes its directory."""

        def come_and_go(thread: int) -> bool:
            names = [f"delta/1/{thread}-{number}" for number in range(60)]
            for name in names:
                created = store.put_if_absent(name, b"")
                store.delete([name])
                if not created:
                    return False
            return True

        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(come_and_go, range(4)))
        assert store.list("") == []

    def test_a_put_whose_directory_is_always_removed_can_be_tried_again(
        self, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A put fails with a remedy if another process removes its directory again and again, and leaves no file."""
        make = DirectoryStore._make

        def make_in_vain(opened: DirectoryStore, folder: Path) -> Sequence[Path]:
            missing = make(opened, folder)
            if "delta" in folder.parts:
                folder.rmdir()
            return missing

        monkeypatch.setattr(DirectoryStore, "_make", make_in_vain)
        with pytest.raises(UnavailableError, match="kept deleting the directory") as caught:
            store.put_if_absent("delta/1/a", b"abc")
        assert caught.value.remedy == "Try again."
        monkeypatch.undo()
        assert store.list("") == []
        assert store.put_if_absent("delta/1/a", b"abc")

    def test_exactly_one_process_puts_each_name(self, store: ObjectStore, root: Path) -> None:
        """Of three processes that put the same fifty names, exactly one gets True for each name."""
        program = (
            "import sys; from riffle_spark.state.objects.open import open_store\n"
            "store = open_store(sys.argv[1]); input()\n"
            "print(*(n for n in range(50) if store.put_if_absent(f'log/{n}', sys.argv[2].encode())))"
        )
        command = [sys.executable, "-c", program, f"file://{root}"]
        processes = [
            subprocess.Popen([*command, str(i)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) for i in range(3)
        ]
        for process in processes:
            assert process.stdin
            process.stdin.write(b"\n")
            process.stdin.flush()
        outputs = [process.communicate(timeout=60)[0].split() for process in processes]
        won = {int(number): i for i, output in enumerate(outputs) for number in output}
        assert sum(map(len, outputs)) == len(won) == 50
        assert {n: int(store.get(f"log/{n}") or b"") for n in range(50)} == won

    def test_a_root_whose_path_contains_a_file_is_refused(self, root: Path) -> None:
        """A root whose path contains a file is refused with its name."""
        root.write_bytes(b"")
        with pytest.raises(ConfigError, match="RIFFLE-0424") as caught:
            open_store(f"file://{root}/below").put_if_absent("log/1", b"")
        assert str(root) in caught.value.where
        assert caught.value.remedy

    def test_a_name_that_is_a_directory_is_refused(self, store: ObjectStore) -> None:
        """A put to a name that is a directory is refused, and a get of it returns nothing."""
        store.put_if_absent("log/1", b"")
        with pytest.raises(ConfigError):
            store.put_if_absent("log", b"")
        assert store.get("log") is None
        assert not store.exists("log")

    @pytest.mark.parametrize("length", [1 << 29, 1 << 62, 1 << 63])
    def test_a_huge_range_allocates_only_the_bytes_of_the_object(self, store: ObjectStore, length: int) -> None:
        """A read of a huge range allocates only as much memory as the object has bytes."""
        store.put_if_absent("log/1", b"abc")
        tracemalloc.start()
        try:
            assert (store.get("log/1", 0, length), store.get("log/1", 2, length)) == (b"abc", b"c")
            assert tracemalloc.get_traced_memory()[1] < 1 << 20
        finally:
            tracemalloc.stop()

    def test_a_full_disk_leaves_no_object(self, store: ObjectStore) -> None:
        """A put that does not fit on the disk raises an error and lists no object, and a smaller put succeeds."""
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
        try:
            with pytest.raises(UnavailableError) as caught:
                store.put_if_absent("log/1", b"x" * 200_000)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert "disk" in caught.value.remedy
        assert store.list("") == []
        assert store.put_if_absent("log/1", b"x")

    @pytest.mark.parametrize("root", ["/proc/nobody-makes-this", "/proc/nobody-makes-this/root", "/dev/null/root"])
    def test_a_root_that_cannot_be_created_is_refused(self, root: str) -> None:
        """A root that cannot be created raises RefusedError, because a retry cannot help."""
        with pytest.raises(RefusedError, match="RIFFLE-0424") as caught:
            open_store(f"file://{root}").put_if_absent("log/1", b"abc")
        assert "`root`" in caught.value.remedy


class TestRootFileMode:
    """The permissions of files and folders in a root."""

    @pytest.fixture(params=[0o022, 0o077], autouse=True)
    def umask(self, request: pytest.FixtureRequest) -> Iterator[int]:
        """Set the umask of the process."""
        before = os.umask(request.param)
        yield request.param
        os.umask(before)

    def test_the_mode_defaults_to_what_the_umask_allows(self, tmp_path: Path, umask: int) -> None:
        """Without `root_file_mode` files and folders have the permissions that the umask leaves."""
        open_store(f"file://{tmp_path}/root").put_if_absent("log/1", b"abc")
        assert _mode(tmp_path / "root/log/1") == 0o666 & ~umask
        assert _mode(tmp_path / "root/log") == 0o777 & ~umask

    @pytest.mark.parametrize(("mode", "folders"), [("0640", 0o750), ("0600", 0o700), ("660", 0o770), ("0664", 0o775)])
    def test_root_file_mode_sets_the_mode_of_files_and_folders(
        self, tmp_path: Path, mode: str, folders: int, umask: int
    ) -> None:
        """With `root_file_mode` files have this mode whatever the umask, folders add execute bits for readers, and
        folders above the root keep the umask's mode.
        """
        options = options_of(Settings(root_file_mode=mode))
        store = pickle.loads(pickle.dumps(open_store(f"file://{tmp_path}/above/root", options)))
        assert store.put_if_absent("totals/1/a", b"abc")
        root = tmp_path / "above/root"
        assert _mode(root / "totals/1/a") == int(mode, 8)
        assert {_mode(root / folder) for folder in (".", ".unfinished", "totals", "totals/1")} == {folders}
        assert _mode(root.parent) == 0o777 & ~umask

    def test_the_lock_file_has_root_file_mode(self, tmp_path: Path) -> None:
        """The lock file has `root_file_mode` too, so that other users can replace objects."""
        store = open_store(f"file://{tmp_path}/root", options_of(Settings(root_file_mode="0660")))
        store.put_if_absent("status.json", b"old")
        tagged = store.get_if_changed("status.json")
        assert tagged is not None
        assert store.replace_if_unchanged("status.json", b"new", tagged.tag)
        assert _mode(tmp_path / "root/.lock") == 0o660

    @pytest.mark.parametrize("mode", ["0755", "0400", "rw-r-----", 640, True])
    def test_an_invalid_root_file_mode_is_refused(self, mode: object) -> None:
        """A mode with execute bits, or without read and write for the owner, is refused."""
        with pytest.raises(ConfigError, match="RIFFLE-0249") as caught:
            Settings(root_file_mode=mode)  # type: ignore[arg-type]
        assert "root_file_mode" in caught.value.where


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("read", ["get", "copy_to"])
def test_a_fifo_with_the_name_of_an_object_is_refused(tmp_path: Path, read: str) -> None:
    """A FIFO with the name of an object is refused instead of blocking the reader."""
    os.mkfifo(tmp_path / "record")
    store = DirectoryStore(tmp_path)
    with pytest.raises(RefusedError, match="RIFFLE-0424"):
        store.get("record") if read == "get" else store.copy_to("record", 0, 9, print)
