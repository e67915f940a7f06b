"""What plain parallel ranged gets reach from a server: the measure of a restore. Knows boto3. Does not know riffle."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import boto3
from botocore.config import Config

from apps.demo.servers import DiskS3Server

__all__ = ["plain_gets"]

PIECE_BYTES = 8 << 20
THREADS = (8, 16)


class _Range(NamedTuple):
    name: str
    start: int
    end: int


class _Share(NamedTuple):
    """What one process gets, and from where."""

    client: Mapping[str, str]
    bucket: str
    ranges: Sequence[_Range]
    threads: int


def plain_gets(server: DiskS3Server, objects: Mapping[str, int], processes: int) -> float:
    """Return the bytes a second that so many processes get at once, with the better of 8 and 16 threads each.

    ``objects`` are names and sizes; each is got once, in ranges of at most 8 MB, and thrown away.
    """
    ranges = [
        _Range(name, start, min(start + PIECE_BYTES, size) - 1)
        for name, size in sorted(objects.items())
        for start in range(0, size, PIECE_BYTES)
    ]
    return max(_rate(server, ranges, processes, threads) for threads in THREADS)


def _rate(server: DiskS3Server, ranges: Sequence[_Range], processes: int, threads: int) -> float:
    client = dict(server.client_arguments)
    shares = [_Share(client, server.bucket, ranges[number::processes], threads) for number in range(processes)]  # type: ignore[arg-type]
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        pool.map(_warm, shares, chunksize=1)
        done = pool.map(_get, shares, chunksize=1)
    started, ended = min(each[1] for each in done), max(each[2] for each in done)
    return sum(each[0] for each in done) / (ended - started)


def _warm(share: _Share) -> None:
    """Have a process import everything and connect; the barrier is that all are waited for."""
    _get(share._replace(ranges=share.ranges[:1]))
    time.sleep(0.2)


def _get(share: _Share) -> tuple[int, float, float]:
    client = boto3.client("s3", **share.client, config=Config(max_pool_connections=share.threads))  # type: ignore[call-overload]

    def get(wanted: _Range) -> int:
        answer = client.get_object(Bucket=share.bucket, Key=wanted.name, Range=f"bytes={wanted.start}-{wanted.end}")
        return len(answer["Body"].read())

    started = time.monotonic()
    with ThreadPoolExecutor(share.threads) as pool:
        size = sum(pool.map(get, share.ranges))
    return size, started, time.monotonic()
