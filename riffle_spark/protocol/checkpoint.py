"""Spark's own checkpoint folder: query id, offset log and commit log. Knows their files, on any file system. Does not
know our log.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from pyarrow import fs

from riffle_spark.errors import ConfigError

__all__ = ["Checkpoint"]

_COMMIT = 'v1\n{"nextBatchWatermarkMs":0}'


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint folder, by path or URI (``file:``, ``s3:``, ``hdfs:``: what pyarrow reaches)."""

    location: str

    def query_id(self) -> str:
        """Return the id that Spark gave the query. Raises ``ConfigError`` if there is no checkpoint."""
        files, base = self._files()
        try:
            with files.open_input_stream(f"{base}/metadata") as stream:
                return str(json.loads(stream.read())["id"])
        except (OSError, ValueError, KeyError):
            raise ConfigError(
                f"{self.location} is not a checkpoint of a streaming query",
                remedy="give the folder that is set as checkpointLocation; start the query once to make it",
                where=self.location,
            ) from None

    def next_batch(self) -> int:
        """Return the id of the batch that Spark will hand over next: the last planned one, if it is not committed."""
        planned, committed = self._ids("offsets"), self._ids("commits")
        if planned and planned[-1] not in committed:
            return planned[-1]
        return committed[-1] + 1 if committed else 0

    def restore(self, version: int, offsets: str | None) -> list[str]:
        """Make ``version`` the last committed batch, with the offset-log entry ``offsets``; return what was done.

        Entries after it are removed, newest first, so that a crash in between leaves a gap that is seen.
        """
        files, base = self._files()
        done = []
        for folder in ("commits", "offsets"):
            for batch in reversed([b for b in self._ids(folder) if b > version]):
                self._remove(files, f"{base}/{folder}", batch)
                done.append(f"removed {folder}/{batch}")
        if version >= 0 and offsets is not None:
            self._write(files, f"{base}/offsets", version, offsets)
            self._write(files, f"{base}/commits", version, _COMMIT)
            done.append(f"wrote offsets/{version} and commits/{version}")
        return done

    def _files(self) -> tuple[fs.FileSystem, str]:
        location = self.location.replace("s3a://", "s3://")
        if location.startswith("file:") and not location.startswith("file://"):
            location = location.removeprefix("file:")
        files, base = fs.FileSystem.from_uri(location) if "://" in location else (fs.LocalFileSystem(), location)
        return files, base.rstrip("/")

    def _ids(self, folder: str) -> list[int]:
        files, base = self._files()
        found = files.get_file_info(fs.FileSelector(f"{base}/{folder}", allow_not_found=True))
        return sorted(int(info.base_name) for info in found if info.base_name.isdigit())

    def _remove(self, files: fs.FileSystem, folder: str, batch: int) -> None:
        for name in (f"{folder}/{batch}", f"{folder}/.{batch}.crc"):
            if files.get_file_info(name).type is fs.FileType.File:
                files.delete_file(name)

    def _write(self, files: fs.FileSystem, folder: str, batch: int, text: str) -> None:
        self._remove(files, folder, batch)
        files.create_dir(folder)
        with files.open_output_stream(f"{folder}/{batch}") as stream:
            stream.write(text.encode())
