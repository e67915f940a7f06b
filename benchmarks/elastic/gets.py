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
    """Bytes of an object: its name in the bucket, where they start and where they end, the end left out."""

    name: str
    start: int
    end: int


class _Share(NamedTuple):
    """What one process gets, and from where."""

    client: Mapping[str, str]
    bucket: str
    spans: Sequence[Span]
    threads: int


def plain_gets(server: DiskS3Server, object_spans: Iterable[Span], processes: int) -> float:
    """Return the bytes a second that so many processes get at once, with the better of 8 and 16 threads each.

    What is wanted is got once, in as few ranges of at most 8 MB as there can be, and thrown away.
    """
    spans = pieces(object_spans)
    return max(_rate(server, spans, processes, threads) for threads in THREADS)


def pieces(spans: Iterable[Span]) -> list[Span]:
    """Return the same bytes: what adjoins in one range, none longer than a piece."""
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
        done = pool.map(_get, shares, chunksize=1)
    started = min(piece[1] for piece in done)
    ended = max(piece[2] for piece in done)
    return sum(piece[0] for piece in done) / (ended - started)


def _warm(share: _Share) -> None:
    """Have a process import everything and connect; the barrier is that all are waited for."""
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
