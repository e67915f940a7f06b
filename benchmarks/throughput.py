"""Running count and sum per key: ours, with state committed to an S3 server, against what Spark has built in.

./run bench throughput [--json] [--rows 100000] [--keys 200000] [--batches 10]
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.kit.streams import in_process, measure, median, peak_memory_mb, session, source

WARM_UP = 3
SECONDS_A_SIDE = 240.0


def ours(spec: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Stateful aggregation with riffle, state in S3."""
    import riffle_spark as riffle

    spark = session(**{"spark.scheduler.mode": "FAIR"})
    settings = riffle.Settings(
        root=spec["root"], s3_endpoint=spec["endpoint"], s3_region="us-east-1", local_dir=str(folder)
    )
    compute = riffle.aggregate(count=riffle.count(), total=riffle.sum_("amount"))
    job = riffle.Stateful("totals", key="key", compute=compute, settings=settings).into(
        lambda rows, _: rows.write.format("noop").mode("append").save()
    )
    seconds = _measured(spec, source(spark, spec["rows"], spec["keys"]).writeStream.foreachBatch(job), folder)
    reports = [report for report in job.reports if report.decision == "run"][WARM_UP : WARM_UP + len(seconds)]
    return {
        "seconds": seconds,
        "requests": median(sum(report.requests.values()) for report in reports),
        "upkeep_requests": sum(sum(report.upkeep_requests.values()) for report in reports) / len(reports),
        "sealed_bytes": median(report.sealed_bytes for report in reports),
        "phases": {name: median(r.seconds.get(name, 0.0) for r in reports) for name in reports[0].seconds},
        "slots": {name: median(r.slot_seconds.get(name, 0.0) for r in reports) for name in reports[0].slot_seconds},
        "peak_memory_mb": peak_memory_mb(),
    }


def builtin(spec: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Spark's own streaming aggregation on RocksDB with changelog checkpointing."""
    stream = source(session(), spec["rows"], spec["keys"]).groupBy("key").agg({"*": "count", "amount": "sum"})
    writer = stream.writeStream.outputMode("update").format("noop")
    return {"seconds": _measured(spec, writer, folder), "peak_memory_mb": peak_memory_mb()}


def apply_in_pandas(spec: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The same with ``applyInPandasWithState``."""
    import pandas as pd

    def totals(key: tuple[int], frames: Iterable[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        count, total = state.get if state.exists else (0, 0)
        for frame in frames:
            count, total = count + len(frame), total + int(frame["amount"].sum())
        state.update((count, total))
        yield pd.DataFrame({"key": [key[0]], "count": [count], "total": [total]})

    grouped = source(session(), spec["rows"], spec["keys"]).groupBy("key")
    stream = grouped.applyInPandasWithState(
        totals, "key long, count long, total long", "count long, total long", "update", "NoTimeout"
    )
    writer = stream.writeStream.outputMode("update").format("noop")
    return {"seconds": _measured(spec, writer, folder), "peak_memory_mb": peak_memory_mb()}


def transform_with_state(spec: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The same with ``transformWithStateInPandas``."""
    from benchmarks.kit.pandas_totals import PandasTotals

    grouped = source(session(), spec["rows"], spec["keys"]).groupBy("key")
    stream = grouped.transformWithStateInPandas(
        PandasTotals(), "key long, count long, total long", outputMode="update", timeMode="none"
    )
    writer = stream.writeStream.outputMode("update").format("noop")
    return {"seconds": _measured(spec, writer, folder), "peak_memory_mb": peak_memory_mb()}


def _measured(spec: dict[str, Any], writer: Any, folder: Path) -> list[float]:
    return measure(writer, folder / "checkpoint", spec["batches"], WARM_UP, SECONDS_A_SIDE)


SIDES: dict[str, Callable[[dict[str, Any], Path], dict[str, Any]]] = {
    "ours": ours,
    "builtin": builtin,
    "apply_in_pandas": apply_in_pandas,
    "transform_with_state": transform_with_state,
}


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run every side in turn and return the figures."""
    from apps.demo.servers import S3Server

    plans = [("ours", options.rows), ("builtin", options.rows), ("ours", 100), ("builtin", 100)]
    if not options.only_builtin:
        few = options.python_rows
        plans += [("transform_with_state", 100), ("apply_in_pandas", few), ("transform_with_state", few)]
    found: dict[tuple[str, int], dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="riffle-bench-") as base, S3Server(Path(base) / "s3") as server:
        for side, rows in plans:
            folder, root = f"{base}/{side}-{rows}", f"s3://{server.bucket}/{side}-{rows}"
            spec = {"side": side, "rows": rows, "keys": options.keys, "batches": options.batches}
            spec |= {"folder": folder, "root": root, "endpoint": server.endpoint}
            print(f"{side}, {rows} rows a batch ...", file=sys.stderr)
            found[side, rows] = in_process("benchmarks.throughput", spec, SECONDS_A_SIDE + 60, server.environment)
            shutil.rmtree(spec["folder"], ignore_errors=True)
    return figures(options, found)


def figures(options: argparse.Namespace, found: dict[tuple[str, int], dict[str, Any]]) -> dict[str, Any]:
    """Return the figures by their JSON names."""
    mine = found["ours", options.rows]

    def rate(side: str, rows: int) -> float:
        return rows / median(found[side, rows]["seconds"])

    result: dict[str, Any] = {
        "rows_per_s": round(rate("ours", options.rows)),
        "rows_per_s_builtin": round(rate("builtin", options.rows)),
        "ratio_vs_builtin": round(rate("ours", options.rows) / rate("builtin", options.rows), 2),
        "batch_ms": round(1000 * median(mine["seconds"])),
        "batch_ms_builtin": round(1000 * median(found["builtin", options.rows]["seconds"])),
        "fixed_ms": round(1000 * median(found["ours", 100]["seconds"])),
        "fixed_ms_builtin": round(1000 * median(found["builtin", 100]["seconds"])),
        "requests_per_batch": mine["requests"],
        "upkeep_requests_per_batch": round(mine["upkeep_requests"], 1),
        "sealed_bytes_per_batch": round(mine["sealed_bytes"]),
        "peak_memory_mb": round(mine["peak_memory_mb"]),
        "peak_memory_mb_builtin": round(found["builtin", options.rows]["peak_memory_mb"]),
        "batches": len(mine["seconds"]),
        "phases": mine["phases"],
        "slots": mine["slots"],
    }
    for side in ("apply_in_pandas", "transform_with_state"):
        if (side, options.python_rows) in found:
            theirs = rate(side, options.python_rows)
            result[f"batch_ms_{side}"] = round(1000 * options.python_rows / theirs)
            result[f"rows_per_s_{side}"] = round(theirs)
            result[f"ratio_vs_{side}" + ("_in_pandas" if side == "transform_with_state" else "")] = round(
                rate("ours", options.rows) / theirs, 1
            )
    if ("transform_with_state", 100) in found:
        result["fixed_ms_transform_with_state"] = round(1000 * median(found["transform_with_state", 100]["seconds"]))
    result["repetitions"] = {
        ("fixed_ms" if rows == 100 else kind) + ("" if side == "ours" else f"_{side}"): len(each["seconds"])
        for (side, rows), each in found.items()
        for kind in ("batch_ms", "rows_per_s")
    }
    return result


def main() -> None:
    """Parse the command line and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--python-rows", type=int, default=20_000, help="rows a batch for Spark's Python operators")
    parser.add_argument("--keys", type=int, default=200_000)
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--only-builtin", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        spec = json.loads(options.side)
        folder = Path(spec["folder"])
        folder.mkdir(parents=True)
        print(json.dumps(SIDES[spec["side"]](spec, folder)))
        return
    result = run(options)
    if options.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name:40} {value}")


if __name__ == "__main__":
    main()
