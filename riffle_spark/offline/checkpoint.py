"""Spark's own checkpoint folder: query id, offset log and commit log. Knows their files, on any file system. Does not
know our log.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import pyarrow as pa
from pyarrow import fs

from riffle_spark.errors import UNREADABLE, ConfigError, UnavailableError, raise_if_memory
from riffle_spark.state.objects.open import StoreOptions, masked
from riffle_spark.state.objects.store import check_endpoint

__all__ = ["Checkpoint", "lacking"]

_Found = TypeVar("_Found")
_ENTRY = re.compile(r"/sources/([0-9]{1,9})/([0-9]{1,18})(?:\.compact)?\Z", re.ASCII)
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
_METADATA_BYTES_MAX = 1 << 16
_ENTRY_BYTES_MAX = 1 << 28
"""More than any source's offsets: those of a hundred thousand partitions of Kafka's are some MB."""
_NOTHING_YET = "-"
"""How Spark writes that a source has no offset yet: it begins where it always does."""
_COMMIT = 'v1\n{"nextBatchWatermarkMs":%d}'


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint folder, by path or URI (``file:``, ``s3:``, ``hdfs:``: what pyarrow reaches). ``options`` tell of a
    server of S3's kind.

    All raise ``UnavailableError`` where its file system does not answer, or refuses.
    """

    location: str = field(repr=False)
    options: StoreOptions | None = None

    @property
    def shown(self) -> str:
        """The location as it may be shown: a URI may hold credentials."""
        return masked(self.location)

    def query_id(self) -> str:
        """Return the id that Spark gave the query. Raises ``ConfigError`` if there is no checkpoint."""
        found = self.found_id()
        if found is None:
            raise ConfigError(
                f"{self.shown} is not a checkpoint of a streaming query",
                remedy="give the folder that is set as checkpointLocation; start the query once to make it",
                where=self.shown,
                id="RIFFLE-0124",
            )
        return found

    def found_id(self) -> str | None:
        """Return that id, ``None`` if there is no checkpoint. Raises ``ConfigError`` for what cannot be one's name."""
        return self._reached(self._query_id)

    def _query_id(self) -> str | None:
        files, base = self._files()
        try:
            with files.open_input_stream(f"{base}/metadata") as stream:
                found = json.loads(stream.read(_METADATA_BYTES_MAX))["id"]
                return found if isinstance(found, str) and found and found.isprintable() else None
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError, *UNREADABLE):
            return None

    def next_batch(self) -> int:
        """Return the id of the batch that Spark will hand over next: the last planned one, if that is not the last one
        that is committed. Commits beyond what is planned, as in a copy of the one folder after the other, tell nothing.
        """
        planned, committed = self._reached(lambda: (self._ids("offsets"), self._ids("commits")))
        return planned[-1] + (planned[-1:] == committed[-1:]) if planned else 0

    def offsets(self, batch: int) -> str | None:
        """Return Spark's offset-log entry of a batch, ``None`` if it has none."""

        def read() -> str | None:
            files, base = self._files()
            return self._read(files, f"{base}/offsets/{batch}")

        return self._reached(read)

    def starts_elsewhere(self, version: int, offsets: str | None) -> list[str]:
        """Return in words which sources do not go on from an offset-log entry, after the batch ``version`` or, with -1,
        from their beginning, as far as the checkpoint tells.
        """
        wanted = (offsets or "").split("\n")[2:]
        committed = (self.offsets(version) or "").split("\n")[2:] if version >= 0 else []
        said = []
        for index, want in enumerate(wanted):
            if want == _NOTHING_YET:
                continue
            if version < 0 and not _can_start_at(want):
                said.append(f"source {index} cannot be told where to start: it counts again all that is there")
                continue
            begin = committed[index] if index < len(committed) else None if committed else self._beginning(index)
            if begin is not None and _parsed(begin) != _parsed(want):
                said.append(
                    f"source {index} goes on from {begin}, and the state is at {want}: rows in between are missed, or "
                    "counted twice"
                )
        return said

    def _beginning(self, source: int) -> str | None:
        """Return where a source of the first batch begins, as Kafka's notes it."""

        def read() -> str | None:
            files, base = self._files()
            return self._read(files, f"{base}/sources/{source}/0")

        text = self._reached(read)
        return text.rstrip().rpartition("\n")[2] if text else None

    def seen_by_source(self) -> dict[int, int]:
        """Return the newest entry of each source that has some: a source of files keeps a log there of what it saw."""
        return self._reached(self._seen_by_source)

    def _seen_by_source(self) -> dict[int, int]:
        files, base = self._files()
        selector = fs.FileSelector(f"{base}/sources", allow_not_found=True, recursive=True)
        entries = [_ENTRY.search(info.path) for info in files.get_file_info(selector)]
        found: dict[int, int] = {}
        for source, entry in sorted(tuple(map(int, named.groups())) for named in entries if named):
            found[source] = entry
        return found

    def restore(
        self, version: int, offsets: str | None, before: str | None = None, *, comes_again: bool = False
    ) -> list[str]:
        """Make ``version`` the last committed batch, with the offset-log entry ``offsets``; return what was done.

        Entries after it are removed, newest first, so that a crash in between leaves a gap that is seen. What is
        there already and right is left alone; a commit that has to be written says the watermark that Spark noted
        with the offsets. Spark reads the entry of the batch ``before`` too: where the checkpoint goes forward by
        several batches, that is written as well. ``comes_again``: the last one that is committed is the one before, and
        Spark will run ``version`` once more.
        """
        return self._reached(lambda: self._restored(version, offsets, before, comes_again=comes_again))

    def _reached(self, work: Callable[[], _Found]) -> _Found:
        """Return what comes of ``work``. What a file system says may repeat credentials that the location holds."""
        try:
            return work()
        except (OSError, pa.ArrowException) as error:
            raise_if_memory(error)
            cause, said = (error, str(error)) if self.shown == self.location else (None, type(error).__name__)
        raise UnavailableError(
            f"the checkpoint cannot be reached: {said}",
            remedy="make its file system reachable, with the rights to it, and run the command again",
            where=self.shown,
            id="RIFFLE-0125",
        ) from cause

    def _restored(self, version: int, offsets: str | None, before: str | None, *, comes_again: bool) -> list[str]:
        done, last = [], version - 1 if comes_again and offsets is not None else version
        for folder, newest in (("commits", last), ("offsets", version)):
            done += self._forget_after(folder, newest)
        if version >= 0 and offsets is not None:
            if version > 0:
                done += self._have("offsets", version - 1, before or offsets, replaces=False)
            done += self._have("offsets", version, offsets)
            if last >= 0:
                noted = (before or offsets) if last < version else offsets
                done += self._have("commits", last, _COMMIT % _watermark_in(noted), replaces=False)
        return done

    def _forget_after(self, folder: str, newest: int) -> list[str]:
        """Remove entries after the ``newest``, from the last one on."""
        files, base = self._files()
        gone = [batch for batch in reversed(self._ids(folder)) if batch > newest]
        for batch in gone:
            self._remove(files, f"{base}/{folder}", batch)
        return [f"removed {folder}/{batch}" for batch in gone]

    def _have(self, folder: str, batch: int, text: str, *, replaces: bool = True) -> list[str]:
        """Write an entry that is missing or, if it ``replaces``, another one than it should be."""
        files, base = self._files()
        there = self._read(files, f"{base}/{folder}/{batch}")
        if there == text or (there is not None and not replaces):
            return []
        self._write(files, f"{base}/{folder}", batch, text)
        return [f"wrote {folder}/{batch}"]

    def _read(self, files: fs.FileSystem, name: str) -> str | None:
        if files.get_file_info(name).type is not fs.FileType.File:
            return None
        with files.open_input_stream(name) as stream:
            data = stream.read(_ENTRY_BYTES_MAX + 1)
        if len(data) > _ENTRY_BYTES_MAX:
            raise ConfigError(
                f"a file of the checkpoint is larger than {_ENTRY_BYTES_MAX} bytes, which no entry of Spark's is",
                remedy="restore the checkpoint from a backup, or name another one",
                where=masked(name),
                id="RIFFLE-0126",
            )
        return bytes(data).decode(errors="replace")

    def _files(self) -> tuple[fs.FileSystem, str]:
        location = self.location.replace("s3a://", "s3://")
        if location.startswith("file:") or not _URI.match(location):  # as Spark has it: "%20" is itself
            files, base = fs.LocalFileSystem(), location.removeprefix("file:").removeprefix("//")
        elif location.startswith("s3://") and self.options and self.options.s3_endpoint:
            files, base = self._server_of(self.options), location.removeprefix("s3://")
        else:
            files, base = self._of_uri(location)
        if not base.strip("/"):
            raise ConfigError(
                f"{self.shown!r} names no folder",
                remedy="give that of checkpointLocation",
                where="--checkpoint",
                id="RIFFLE-0127",
            )
        return files, base.rstrip("/")

    def _of_uri(self, location: str) -> tuple[fs.FileSystem, str]:
        try:
            found: tuple[fs.FileSystem, str] = fs.FileSystem.from_uri(location)
        except (ValueError, NotImplementedError, pa.ArrowException) as error:
            raise_if_memory(error)
            said = f": {error}" if self.shown == self.location else ""
        else:
            return found
        raise ConfigError(
            f"{self.shown} names no file system that is known{said}",
            remedy="give a path, or file:, s3: or hdfs: with one",
            where="--checkpoint",
            id="RIFFLE-0128",
        )

    def _server_of(self, options: StoreOptions) -> fs.S3FileSystem:
        """Return Arrow's client of the server that the settings name."""
        check_endpoint(options.s3_endpoint or "")
        if "//***" in self.shown:
            raise ConfigError(
                f"{self.shown} holds credentials, which the server of `s3_endpoint` is not given by a name",
                remedy="write s3://bucket/path; give credentials by boto3's default chain",
                where="--checkpoint",
                id="RIFFLE-0129",
            )
        return fs.S3FileSystem(
            endpoint_override=options.s3_endpoint, region=options.s3_region or "us-east-1",
            connect_timeout=options.s3_connect_timeout_seconds, request_timeout=options.s3_read_timeout_seconds,
            retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=options.s3_max_attempts),
        )  # fmt: skip

    def _ids(self, folder: str) -> list[int]:
        files, base = self._files()
        found = files.get_file_info(fs.FileSelector(f"{base}/{folder}", allow_not_found=True))
        return sorted(int(info.base_name) for info in found if info.base_name.isascii() and info.base_name.isdigit())

    def _remove(self, files: fs.FileSystem, folder: str, batch: int) -> None:
        for name in (f"{folder}/.{batch}.crc", f"{folder}/{batch}"):  # the entry last: only what is there is seen again
            if files.get_file_info(name).type is fs.FileType.File:
                files.delete_file(name)

    def _write(self, files: fs.FileSystem, folder: str, batch: int, text: str) -> None:
        """Write aside, then put in place of what is there: a crash leaves the old file or the new one."""
        files.create_dir(folder)
        aside = f"{folder}/.{batch}.riffle"
        with files.open_output_stream(aside) as stream:
            stream.write(text.encode())
        checksum = f"{folder}/.{batch}.crc"
        if files.get_file_info(checksum).type is fs.FileType.File:
            files.delete_file(checksum)
        files.move(aside, f"{folder}/{batch}")


def _watermark_in(offsets: str) -> int:
    """Return Spark's own watermark of a batch, from the second line of its offset-log entry."""
    try:
        return int(json.loads(offsets.split("\n")[1])["batchWatermarkMs"])
    except UNREADABLE:
        return 0


def lacking(offsets: str | None, seen: Mapping[int, int]) -> str:
    """Return what sources of files lack to go on from an offset-log entry, if their logs end before it; else nothing.

    ``seen`` is as ``Checkpoint.seen_by_source`` returns it. Others keep at most where they began, and lack nothing.
    Spark numbers sources as it meets them, also those in memory, which have no log. One that is read twice has two
    offsets, which are the same, and one number: from there on an offset may be of any source up to its own place.
    """
    told = (offsets or "").split("\n")[2:]
    first_same = next((at for at, offset in enumerate(told) if offset in told[:at]), len(told))
    said = []
    for index, end in enumerate(map(_logged, told)):
        there = [seen[at] for at in range(0 if index >= first_same else index, index + 1) if at in seen]
        if end > max(there, default=-1):
            ends = f"ends with {max(there)}" if there else "is gone"
            said.append(f"a source of files is at entry {end} of its log there, which {ends}")
    return "; ".join(said) if max(seen.values(), default=-1) >= 0 else ""


def _can_start_at(offset: str) -> bool:
    """Tell whether a query may begin at a source's offset: not of files, nor of Spark's own rows for trials."""
    found = _parsed(offset)
    return isinstance(found, dict) and not {"logOffset"} <= {*found} and {*found} != {"offset", "timestamp"}


def _parsed(offset: str) -> object:
    try:
        return json.loads(offset)
    except ValueError:
        return offset


def _logged(offset: str) -> int:
    """Return the entry of its own log that a source's offset names, -1 for one without."""
    try:
        return int(json.loads(offset)["logOffset"])
    except UNREADABLE:
        return -1
