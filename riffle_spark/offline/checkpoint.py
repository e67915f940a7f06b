"""Spark's checkpoint folder: query id, offset log, commit log and the logs of file sources, on any file system."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

import pyarrow as pa
from pyarrow import fs

from riffle_spark.errors import UNREADABLE, ConfigError, UnavailableError, raise_if_memory
from riffle_spark.state.objects.open import masked
from riffle_spark.state.objects.options import StoreOptions
from riffle_spark.state.objects.store import check_endpoint

_Result = TypeVar("_Result")
_Arguments = ParamSpec("_Arguments")
_SOURCE_ENTRY = re.compile(r"/sources/([0-9]{1,9})/([0-9]{1,18})(?:\.compact)?\Z", re.ASCII)
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
_METADATA_BYTES_MAX = 1 << 16
_ENTRY_BYTES_MAX = 1 << 28
"""Limit for an offset-log entry. The entry of a hundred thousand Kafka partitions has some MB."""
_NO_OFFSET = "-"
"""Spark's text for a source without an offset: the source starts at its usual beginning."""
_COMMIT = 'v1\n{"nextBatchWatermarkMs":%d}'


def _masks_errors(
    method: "Callable[Concatenate[Checkpoint, _Arguments], _Result]",
) -> "Callable[Concatenate[Checkpoint, _Arguments], _Result]":
    """Convert errors of the file system in a method of a checkpoint to ``UnavailableError``.

    They may contain the credentials of the location, so they are masked.
    """

    @wraps(method)
    def call(checkpoint: "Checkpoint", /, *arguments: _Arguments.args, **named: _Arguments.kwargs) -> _Result:
        try:
            return method(checkpoint, *arguments, **named)
        except (OSError, pa.ArrowException) as error:
            raise_if_memory(error)
            is_masked = checkpoint.shown != checkpoint.location
            cause = None if is_masked else error
            reason = type(error).__name__ if is_masked else str(error)
        raise UnavailableError(
            f"Cannot read the checkpoint: {reason}",
            remedy="Make its file system reachable, with the rights to it, and run the command again.",
            where=checkpoint.shown,
            id="RIFFLE-0125",
        ) from cause

    return call


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint folder, by path or by a URI of pyarrow (``file:``, ``s3:``, ``gs:``, ``abfss:``, ``hdfs:``).

    ``options`` name an S3-compatible server. All methods raise ``UnavailableError`` if the file system fails.
    """

    location: str = field(repr=False)
    options: StoreOptions | None = None

    @property
    def shown(self) -> str:
        """The location without credentials, for messages."""
        return masked(self.location)

    def query_id(self) -> str:
        """Return the id of the query. Raises ``ConfigError`` if there is no checkpoint at the location."""
        query_id = self.find_query_id()
        if query_id is None:
            # Cause: The path is wrong, or the query has never started.
            raise ConfigError(
                f"{self.shown} is not a checkpoint of a streaming query.",
                remedy="Give the folder that is set as checkpointLocation. Starting the query once creates it.",
                where=self.shown,
                id="RIFFLE-0124",
            )
        return query_id

    @_masks_errors
    def find_query_id(self) -> str | None:
        """Return the id of the query, ``None`` if there is no checkpoint. Raises ``ConfigError`` for an invalid URI."""
        files, base = self._files()
        try:
            with files.open_input_stream(f"{base}/metadata") as stream:
                query_id = json.loads(stream.read(_METADATA_BYTES_MAX))["id"]
                return query_id if isinstance(query_id, str) and query_id and query_id.isprintable() else None
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError, *UNREADABLE):
            return None

    @_masks_errors
    def next_batch(self) -> int:
        """Return the id of the batch that Spark runs next, 0 if no batch is planned.

        It is the last planned batch, or the one after if that is committed. Commits after the last planned batch, as in
        a copy that took one folder after the other, are ignored.
        """
        planned = self._batch_ids("offsets")
        committed = self._batch_ids("commits")
        return planned[-1] + (planned[-1:] == committed[-1:]) if planned else 0

    @_masks_errors
    def offsets(self, batch: int) -> str | None:
        """Return Spark's offset-log entry of a batch, ``None`` if it has none."""
        files, base = self._files()
        return self._read(files, f"{base}/offsets/{batch}")

    def watermark_ms(self, batch: int) -> int | None:
        """Return Spark's watermark (ms) during a batch, ``None`` if it has none or its entry is not there."""
        return _watermark_in(self.offsets(batch) or "") or None

    def describe_start_gaps(self, version: int, offsets: str | None) -> list[str]:
        """Return a sentence per source that would not continue from the offset-log entry ``offsets``.

        The query continues after batch ``version``, or with -1 from the sources' beginnings.
        """
        state_offsets = (offsets or "").split("\n")[2:]
        committed = (self.offsets(version) or "").split("\n")[2:] if version >= 0 else []
        gaps = []
        for source, state_offset in enumerate(state_offsets):
            if state_offset == _NO_OFFSET:
                continue
            if version < 0 and not _is_start_offset(state_offset):
                gaps.append(f"Source {source} has no option for its first offset. It would count all its rows again.")
                continue
            start: str | None = None
            if source < len(committed):
                start = committed[source]
            elif not committed:
                start = self._first_offset(source)
            if start is not None and _parse(start) != _parse(state_offset):
                gaps.append(
                    f"Source {source} continues from {start}, but the state is at {state_offset}. Rows in between "
                    "would be missed or counted twice."
                )
        return gaps

    @_masks_errors
    def _first_offset(self, source: int) -> str | None:
        """Return the first offset of a source that stores it in the checkpoint, as Kafka's does."""
        files, base = self._files()
        text = self._read(files, f"{base}/sources/{source}/0")
        return text.rstrip().rpartition("\n")[2] if text else None

    @_masks_errors
    def newest_source_entries(self) -> dict[int, int]:
        """Return the number of the newest log entry of each source that keeps a log, as file sources do."""
        files, base = self._files()
        selector = fs.FileSelector(f"{base}/sources", allow_not_found=True, recursive=True)
        matches = [_SOURCE_ENTRY.search(info.path) for info in files.get_file_info(selector)]
        newest: dict[int, int] = {}
        for source, entry in sorted(tuple(map(int, match.groups())) for match in matches if match):
            newest[source] = entry
        return newest

    @_masks_errors
    def restore(
        self, version: int, offsets: str | None, previous_offsets: str | None = None, *, runs_again: bool = False
    ) -> list[str]:
        """Make ``version`` the last committed batch, with the offset-log entry ``offsets``. Return the steps taken.

        Later entries are removed newest first, so that a crash leaves a visible gap. Correct files stay. A commit that
        is missing or truncated is written, with the watermark that Spark stored with the offsets. If the checkpoint has
        other offsets of ``version``, its commit has the watermark of another history, so it is removed first. Spark
        also reads the entry of the batch before, so ``previous_offsets`` are written. With ``runs_again`` the batch
        before is the last committed batch, and Spark runs ``version`` again.
        """
        committed = version - 1 if runs_again and offsets is not None else version
        is_other_history = offsets is not None and self.offsets(version) not in {None, offsets}
        steps = self._remove_after("commits", version - 1 if is_other_history else committed)
        steps += self._remove_after("offsets", version)
        if version >= 0 and offsets is not None:
            if version > 0:
                previous = previous_offsets or offsets
                steps += self._ensure_entry("offsets", version - 1, previous, replace=previous_offsets is not None)
            steps += self._ensure_entry("offsets", version, offsets)
            if committed >= 0:
                committed_offsets = (previous_offsets or offsets) if committed < version else offsets
                commit = _COMMIT % _watermark_in(committed_offsets)
                steps += self._ensure_entry("commits", committed, commit, replace=not self._is_committed(committed))
        return steps

    @_masks_errors
    def last_committed_batch(self) -> int:
        """Return the newest batch with an entry in both logs, -1 if there is none."""
        return max({*self._batch_ids("offsets")} & {*self._batch_ids("commits")}, default=-1)

    @_masks_errors
    def is_empty(self) -> bool:
        """Return whether there is no file at the location."""
        files, base = self._files()
        return not files.get_file_info(fs.FileSelector(base, allow_not_found=True))

    @_masks_errors
    def copy_to(self, target: "Checkpoint", batch: int, added_sources: int = 0) -> None:
        """Copy to ``target`` what a query needs to continue after the committed ``batch``, without Spark's state.

        The entries of the offset log from the one before ``batch`` on, the commit of ``batch``, the query id, and the
        logs of sources. ``added_sources`` sources without an offset are added to the offset-log entries. The query id
        is written last, so that an interrupted copy is not a checkpoint.
        """
        files, base = self._files()
        target_files, target_base = target._files()
        for entry in [entry for entry in self._batch_ids("offsets") if entry >= batch - 1]:
            text = with_added_sources(self._read(files, f"{base}/offsets/{entry}") or "", added_sources)
            self._write(target_files, f"{target_base}/offsets", entry, text)
        commit = self._read(files, f"{base}/commits/{batch}") or ""
        self._write(target_files, f"{target_base}/commits", batch, commit)
        if files.get_file_info(f"{base}/sources").type is fs.FileType.Directory:
            fs.copy_files(
                f"{base}/sources",
                f"{target_base}/sources",
                source_filesystem=files,
                destination_filesystem=target_files,
            )
        target_files.create_dir(target_base)
        with files.open_input_stream(f"{base}/metadata") as stream:
            metadata = stream.read(_METADATA_BYTES_MAX)
        with target_files.open_output_stream(f"{target_base}/metadata") as output:
            output.write(metadata)

    def _is_committed(self, batch: int) -> bool:
        """Return whether a batch has a commit that is not truncated: a version, then an object of JSON."""
        files, base = self._files()
        text = self._read(files, f"{base}/commits/{batch}") or ""
        return isinstance(_parse(text.partition("\n")[2]), dict)

    def _remove_after(self, folder: str, newest: int) -> list[str]:
        """Remove the entries of batches after ``newest``, newest first. Return the steps taken."""
        files, base = self._files()
        batches = [batch for batch in reversed(self._batch_ids(folder)) if batch > newest]
        for batch in batches:
            self._remove(files, f"{base}/{folder}", batch)
        return [f"removed {folder}/{batch}" for batch in batches]

    def _ensure_entry(self, folder: str, batch: int, text: str, *, replace: bool = True) -> list[str]:
        """Write an entry that is missing or, with ``replace``, differs. Return the step taken, or nothing."""
        files, base = self._files()
        existing = self._read(files, f"{base}/{folder}/{batch}")
        if existing == text or (existing is not None and not replace):
            return []
        self._write(files, f"{base}/{folder}", batch, text)
        return [f"wrote {folder}/{batch}"]

    def _read(self, files: fs.FileSystem, name: str) -> str | None:
        """Return the text of a file, or ``None`` if it does not exist. Raises ``ConfigError`` if it is too large."""
        if files.get_file_info(name).type is not fs.FileType.File:
            return None
        with files.open_input_stream(name) as stream:
            data = stream.read(_ENTRY_BYTES_MAX + 1)
        if len(data) > _ENTRY_BYTES_MAX:
            raise ConfigError(
                f"A checkpoint file is larger than {_ENTRY_BYTES_MAX} bytes, so it is not an offset-log entry.",
                remedy="Restore the checkpoint from a backup, or name another one.",
                where=masked(name),
                id="RIFFLE-0126",
            )
        return bytes(data).decode(errors="replace")

    def _files(self) -> tuple[fs.FileSystem, str]:
        """Return pyarrow's file system of the location, and the path in it."""
        location = self.location.replace("s3a://", "s3://")
        if location.startswith("file:") or not _URI.match(location):  # like Spark: "%20" is not decoded
            files = fs.LocalFileSystem()
            base = location.removeprefix("file:").removeprefix("//")
        elif location.startswith("s3://") and self.options and self.options.s3.endpoint:
            files = self._s3_client(self.options)
            base = location.removeprefix("s3://")
        else:
            files, base = self._file_system_of_uri(location)
        if not base.strip("/"):
            raise ConfigError(
                f"The checkpoint {self.shown!r} has no folder in its path.",
                remedy="Give the folder that is set as checkpointLocation.",
                where="--checkpoint",
                id="RIFFLE-0127",
            )
        return files, base.rstrip("/")

    def _file_system_of_uri(self, location: str) -> tuple[fs.FileSystem, str]:
        """Return pyarrow's file system of a URI, and the path in it. Raises ``ConfigError`` if it has none."""
        try:
            files, base = fs.FileSystem.from_uri(location)
        except (ValueError, NotImplementedError, pa.ArrowException) as error:
            raise_if_memory(error)
        else:
            return files, base
        raise ConfigError(
            f"{self.shown} is not on a known file system.",
            remedy="Give a path, or a file:, s3:, gs:, abfss: or hdfs: URI.",
            where="--checkpoint",
            id="RIFFLE-0128",
        )

    def _s3_client(self, options: StoreOptions) -> fs.S3FileSystem:
        """Return pyarrow's file system for an S3-compatible server."""
        check_endpoint(options.s3.endpoint or "")
        if "//***" in self.shown:
            raise ConfigError(
                f"The checkpoint {self.shown} contains credentials, which are not supported together with s3_endpoint.",
                remedy="Write the checkpoint as s3://bucket/path. Give the credentials through boto3's default chain.",
                where="--checkpoint",
                id="RIFFLE-0129",
            )
        return fs.S3FileSystem(
            endpoint_override=options.s3.endpoint,
            region=options.s3.region or "us-east-1",
            connect_timeout=options.connect_timeout_seconds,
            request_timeout=options.read_timeout_seconds,
            retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=options.max_attempts),
        )

    def _batch_ids(self, folder: str) -> list[int]:
        """Return the ids of the batches with an entry in a folder of the checkpoint, ascending."""
        files, base = self._files()
        infos = files.get_file_info(fs.FileSelector(f"{base}/{folder}", allow_not_found=True))
        return sorted(int(info.base_name) for info in infos if info.base_name.isascii() and info.base_name.isdigit())

    def _remove(self, files: fs.FileSystem, folder: str, batch: int) -> None:
        """Remove a batch's entry and its checksum, if they exist."""
        for name in (f"{folder}/.{batch}.crc", f"{folder}/{batch}"):  # the entry last, so that a retry sees it
            if files.get_file_info(name).type is fs.FileType.File:
                files.delete_file(name)

    def _write(self, files: fs.FileSystem, folder: str, batch: int, text: str) -> None:
        """Write a temporary file and move it: a crash leaves the old file or the new one."""
        files.create_dir(folder)
        temporary = f"{folder}/.{batch}.riffle"
        with files.open_output_stream(temporary) as stream:
            stream.write(text.encode())
        checksum = f"{folder}/.{batch}.crc"
        if files.get_file_info(checksum).type is fs.FileType.File:
            files.delete_file(checksum)
        files.move(temporary, f"{folder}/{batch}")


def times_of_entry(entry: str) -> tuple[int, int]:
    """Return the time and the watermark of a batch (ms) from its offset-log entry.

    Raises ``ConfigError`` if they cannot be read.
    """
    try:
        metadata = json.loads(entry.split("\n")[1])
        return int(metadata["batchTimestampMs"]), int(metadata["batchWatermarkMs"])
    except UNREADABLE as error:
        # Cause: The file was altered, or a version of Spark wrote it that this version does not know.
        raise ConfigError(
            f"The times in an entry of Spark's offset log cannot be read: {error!r}",
            remedy="Restore the checkpoint from a backup.",
            where="--checkpoint",
            id="RIFFLE-1623",
        ) from error


def _watermark_in(offsets: str) -> int:
    """Return Spark's watermark (ms) in the second line of an offset-log entry, 0 if it has none."""
    try:
        return int(json.loads(offsets.split("\n")[1])["batchWatermarkMs"])
    except UNREADABLE:
        return 0


def with_added_sources(entry: str, count: int) -> str:
    """Return an offset-log entry with ``count`` further sources at its end, which have no offset yet."""
    return "\n".join([entry.rstrip("\n"), *[_NO_OFFSET] * count])


def describe_missing_entries(offsets: str | None, newest_entries: Mapping[int, int]) -> str:
    """Describe the file sources whose logs in the checkpoint lack the entry that an offset-log entry needs.

    ``offsets`` is the text of the offset-log entry: version, metadata, then one offset per source. ``newest_entries``
    is the result of ``Checkpoint.newest_source_entries``. The result is empty if no entry is missing, or if the
    checkpoint has no source log at all.

    If a query reads one source twice, Spark writes the offset of the source twice but gives the source one number. So
    an offset after the first repeated one may belong to a source with a lower number.
    """
    source_offsets = (offsets or "").split("\n")[2:]
    first_repeat = next((i for i, offset in enumerate(source_offsets) if offset in source_offsets[:i]), None)
    missing = []
    for index, needed_entry in enumerate(map(_log_entry_of, source_offsets)):
        sources = range(0 if first_repeat is not None and index >= first_repeat else index, index + 1)
        newest = max((newest_entries[source] for source in sources if source in newest_entries), default=None)
        if needed_entry > (-1 if newest is None else newest):
            end = "is missing" if newest is None else f"ends with {newest}"
            missing.append(f"the state needs entry {needed_entry} of a file source's log, which {end}")
    return "; ".join(missing) if max(newest_entries.values(), default=-1) >= 0 else ""


def _is_start_offset(offset: str) -> bool:
    """Return whether an option can start a query at this offset. Offsets of file and rate sources cannot."""
    fields = _parse(offset)
    return isinstance(fields, dict) and not {"logOffset"} <= {*fields} and {*fields} != {"offset", "timestamp"}


def _parse(text: str) -> object:
    """Return JSON as values, or the text if it is not JSON. Equal offsets may differ as text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _log_entry_of(offset: str) -> int:
    """Return the entry of the source's own log that an offset names, -1 if it names none."""
    try:
        return int(json.loads(offset)["logOffset"])
    except UNREADABLE:
        return -1
