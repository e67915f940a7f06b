"""Measure plain parallel ranged GETs, the reference for a restore."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import boto3
from botocore.config import Config

from apps.demo.servers import DiskS3Server

__all__ = ["Span", "pieces", "plain_gets"]

PIECE_BYTES = 8 << 20
THREADS = (8, 16)


class Span(NamedTuple):
    """A byte range of an object: its name in the bucket, the start, and the exclusive end."""

    name: str
    start: int
    end: int


class _Share(NamedTuple):
    """The ranges that one process reads, and the client to read them with."""

    client: Mapping[str, str]
    bucket: str
    spans: Sequence[Span]
    threads: int


def plain_gets(server: DiskS3Server, object_spans: Iterable[Span], processes: int) -> float:
    """Return the bytes per second that several processes read at once, with the better of 8 and 16 threads each.

    Each byte is read once and discarded, in as few ranges of at most 8 MB as possible.
    """
    spans = pieces(object_spans)
    return max(_rate(server, spans, processes, threads) for threads in THREADS)


def pieces(spans: Iterable[Span]) -> list[Span]:
    """Return the same bytes with adjacent ranges joined, and split into ranges of at most ``PIECE_BYTES``."""
    joined: list[Span] = []
    for span in sorted(spans):
        if joined and joined[-1].name == span.name and joined[-1].end == span.start:
            joined[-1] = joined[-1]._replace(end=span.end)
        else:
            joined.append(span)
    return [
        Span(name, position, min(position + PIECE_BYTES, end))
        for name, start, end in joined
        for position in range(start, end, PIECE_BYTES)
    ]


def _rate(server: DiskS3Server, spans: Sequence[Span], processes: int, threads: int) -> float:
    client = dict(server.client_arguments)
    shares = [_Share(client, server.bucket, spans[number::processes], threads) for number in range(processes)]  # type: ignore[arg-type]
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        pool.map(_warm, shares, chunksize=1)
        read_counts = pool.map(_get, shares, chunksize=1)
    started = min(piece[1] for piece in read_counts)
    ended = max(piece[2] for piece in read_counts)
    return sum(piece[0] for piece in read_counts) / (ended - started)


def _warm(share: _Share) -> None:
    """Import all modules and connect in this process. The caller waits for all processes."""
    _get(share._replace(spans=share.spans[:1]))
    time.sleep(0.2)


def _get(share: _Share) -> tuple[int, float, float]:
    client = boto3.client("s3", **share.client, config=Config(max_pool_connections=share.threads))  # type: ignore[call-overload]

    def get(span: Span) -> int:
        answer = client.get_object(Bucket=share.bucket, Key=span.name, Range=f"bytes={span.start}-{span.end - 1}")
        return len(answer["Body"].read())

    started = time.monotonic()
    with ThreadPoolExecutor(share.threads) as pool:
        size = sum(pool.map(get, share.spans))
    return size, started, time.monotonic()
