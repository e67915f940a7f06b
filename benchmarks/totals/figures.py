"""Compute the figures of running totals, by name, from the results of all sides."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

__all__ = ["CASES", "PARTS", "Case", "Side", "figures", "repetitions", "sides_of"]

SideResult = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Case:
    """The sizes of a case: rows per batch, keys, measured batches, and warm-up batches.

    If ``filled`` is not 0, batches with this number of rows first fill the state with all keys.
    """

    rows: int
    keys: int = 200_000
    batches: int = 10
    filled: int = 0
    warm_up: int = 3

    def scaled(self, scale: float) -> Case:
        """Return the case with its rows and keys multiplied by ``scale``."""
        sizes = {"rows": self.rows, "keys": self.keys, "filled": self.filled}
        return replace(self, **{name: round(size * scale) for name, size in sizes.items()})


@dataclass(frozen=True, slots=True)
class Side:
    """An engine on a case.

    Several engines are riffle: ``ours``, ``before`` at the other revision, ``configured`` in a session of
    ``riffle_spark.configure``, ``many_groups`` with 1,024 key-groups, and ``without_upkeep`` without work between
    batches. ``stateless`` is Spark's aggregation of each batch by itself.
    """

    engine: str
    case: str


CASES = {
    "rows": Case(rows=100_000, batches=60, warm_up=60),
    "million": Case(rows=1_000_000, batches=20, warm_up=60),
    "fixed": Case(rows=100, batches=60, warm_up=60),
    "one_million_keys": Case(rows=100_000, keys=1_000_000, batches=20, filled=1_000_000),
    "ten_million_keys": Case(rows=100_000, keys=10_000_000, batches=20, filled=1_000_000),
    "tail": Case(rows=100_000, batches=300, warm_up=60),
    "encrypted": Case(rows=100_000, batches=30, warm_up=60),
    "groups": Case(rows=100_000, batches=30, warm_up=60),
    "upkeep": Case(rows=100_000, batches=60, warm_up=60),
    "python": Case(rows=20_000, batches=5, warm_up=10),
    "python_fixed": Case(rows=100, warm_up=10),
}


def _beside_spark(case: str, *engines: str) -> tuple[Side, ...]:
    """Return the sides of these engines on a case, and of Spark: without state, on its default store, on RocksDB."""
    return tuple(Side(engine, case) for engine in (*engines, "stateless", "builtin_heap", "builtin"))


PARTS: dict[str, tuple[Side, ...]] = {
    "rows": _beside_spark("rows", "ours", "configured"),
    "million": _beside_spark("million", "ours"),
    "fixed": _beside_spark("fixed", "ours", "configured"),
    "tail": (Side("ours", "tail"), Side("builtin_heap", "tail")),
    "keys": (Side("ours", "one_million_keys"), Side("ours", "ten_million_keys")),
    "encrypted": (Side("ours", "encrypted"), Side("encrypted", "encrypted")),
    "groups": (Side("ours", "groups"), Side("many_groups", "groups")),
    "upkeep": (Side("ours", "upkeep"), Side("without_upkeep", "upkeep")),
    "python": (
        Side("apply_in_pandas_heap", "python"),
        Side("apply_in_pandas", "python"),
        Side("transform_with_state", "python"),
        Side("transform_with_state", "python_fixed"),
    ),
}
"""The sides of each part, by name. Each part can be measured separately."""
_CPU_NAMES = {
    "rows": ("", ""),
    "million": ("", "_million"),
    "fixed": ("fixed_", ""),
    "groups": ("groups_", ""),
    "upkeep": ("upkeep_", ""),
    "python": ("", ""),
}
"""The text before and after ``cpu_ms`` in the figure names of a case."""


def sides_of(part: str, *, against: bool) -> tuple[Side, ...]:
    """Return the sides of a part. With ``against`` each side ``ours`` is followed by the same side at the other
    revision.
    """
    sides: list[Side] = []
    for side in PARTS[part]:
        sides.append(side)
        if against and side.engine == "ours":
            sides.append(Side("before", side.case))
    return tuple(sides)


def figures(results: Mapping[Side, Sequence[SideResult]]) -> dict[str, Any]:
    """Return the figures by name. ``results`` has by side the result of each round."""
    seconds = {side: [second for round_ in rounds for second in round_["seconds"]] for side, rounds in results.items()}
    batch_s = {side: statistics.median(side_seconds) for side, side_seconds in seconds.items()}
    result: dict[str, Any] = {}
    for side, seconds_of_side in batch_s.items():
        result |= _side_figures(side, seconds_of_side, results[side][0]["rows"])
        result |= _cpu(side, results[side])
    for case, suffix in (("rows", ""), ("million", "_million")):
        result |= _over(f"ratio_of_stateless{suffix}", batch_s, Side("builtin_heap", case), Side("stateless", case))
        for engine in ("builtin", "builtin_heap", "before"):
            result |= _over(f"ratio_vs_{engine}{suffix}", batch_s, Side(engine, case), Side("ours", case))
    result |= _over("ratio_configured", batch_s, Side("builtin_heap", "rows"), Side("configured", "rows"))
    result |= _over("fixed_ratio_configured", batch_s, Side("configured", "fixed"), Side("builtin_heap", "fixed"))
    result |= _over("fixed_ratio", batch_s, Side("ours", "fixed"), Side("builtin", "fixed"))
    result |= _over("fixed_ratio_heap", batch_s, Side("ours", "fixed"), Side("builtin_heap", "fixed"))
    result |= _over("fixed_ratio_before", batch_s, Side("before", "fixed"), Side("builtin", "fixed"))
    for engine, name in (("ours", ""), ("before", "_before")):
        many_keys = Side(engine, "ten_million_keys")
        few = Side(engine, "one_million_keys")
        result |= _over(f"totals_ten_million_ratio{name}", batch_s, many_keys, few)
    result |= _over("encrypted_ratio", batch_s, Side("encrypted", "encrypted"), Side("ours", "encrypted"))
    result |= _over("many_groups_ratio", batch_s, Side("many_groups", "groups"), Side("ours", "groups"))
    result |= _upkeep_share(result)
    result |= _against_python(batch_s)
    if Side("ours", "rows") in results:
        result |= _details(results[Side("ours", "rows")], seconds[Side("ours", "rows")])
    for engine, name in (("ours", ""), ("builtin_heap", "_builtin_heap")):
        if Side(engine, "tail") in seconds:
            tail = seconds[Side(engine, "tail")]
            result[f"p95_over_median{name}"] = round(_p95(tail) / statistics.median(tail), 3)
    if Side("ours", "ten_million_keys") in results:
        result["totals_keys_held"] = min(result_["keys_held"] for result_ in results[Side("ours", "ten_million_keys")])
    return result | _memory(results)


def repetitions(results: Mapping[Side, Sequence[SideResult]]) -> dict[str, int]:
    """Return the number of batches behind each median of one side."""
    return {
        name: sum(len(round_["seconds"]) for round_ in rounds)
        for side, rounds in results.items()
        for name in _side_figures(side, 1.0, 1)
    }


def _side_figures(side: Side, batch_s: float, rows: int) -> dict[str, Any]:
    """Return the times of one side. Names end with the engine unless it is ``ours``."""
    engine = "" if side.engine == "ours" else f"_{side.engine}"
    milliseconds = round(1000 * batch_s)
    if side.case in {"fixed", "python_fixed"}:
        return {f"fixed_ms{engine}": milliseconds}
    if side.case == "encrypted":
        return {f"batch_ms_{'encrypted' if side.engine == 'encrypted' else 'plain' + engine}": milliseconds}
    if side.case in {"tail", "groups", "upkeep"}:
        return {f"{side.case}_batch_ms{engine}": milliseconds}
    if side.case.endswith("_keys"):
        return {f"totals_batch_ms_{side.case}{engine}": milliseconds}
    case = "_million" if side.case == "million" else ""
    return {f"rows_per_s{case}{engine}": round(rows / batch_s), f"batch_ms{case}{engine}": milliseconds}


def _cpu(side: Side, rounds: Sequence[SideResult]) -> dict[str, float]:
    """Return the CPU of a side per batch: medians over rounds.

    For riffle the result also has the CPU of the S3 server.
    """
    if side.case not in _CPU_NAMES:
        return {}
    names = {"cpu_ms": "cpu_ms", **({"server_cpu_ms": "s3_cpu_ms"} if side.engine in ("ours", "before") else {})}
    engine = "" if side.engine == "ours" else f"_{side.engine}"
    prefix, suffix = _CPU_NAMES[side.case]
    return {
        f"{prefix}{name}{suffix}{engine}": round(statistics.median(round_[measured] for round_ in rounds))
        for measured, name in names.items()
        if all(measured in round_ for round_ in rounds)
    }


def _over(name: str, batch_s: Mapping[Side, float], dividend: Side, divisor: Side) -> dict[str, float]:
    if dividend not in batch_s or divisor not in batch_s:
        return {}
    return {name: round(batch_s[dividend] / batch_s[divisor], 3)}


def _upkeep_share(measured: Mapping[str, Any]) -> dict[str, float]:
    """Return the share of the CPU that riffle saves without upkeep."""
    if "upkeep_cpu_ms_without_upkeep" not in measured or "upkeep_cpu_ms" not in measured:
        return {}
    return {"upkeep_cpu_share": round(1 - measured["upkeep_cpu_ms_without_upkeep"] / measured["upkeep_cpu_ms"], 3)}


def _against_python(batch_s: Mapping[Side, float]) -> dict[str, float]:
    """Return the rates of riffle relative to those of Spark's Python operators. Each has batches of its own size."""
    own_s = batch_s.get(Side("ours", "rows"))
    if own_s is None:
        return {}
    rows_ratio = CASES["rows"].rows / CASES["python"].rows
    names = {
        "apply_in_pandas": "apply_in_pandas",
        "apply_in_pandas_heap": "apply_in_pandas_heap",
        "transform_with_state": "transform_with_state_in_pandas",
    }
    return {
        f"ratio_vs_{name}": round(rows_ratio * batch_s[Side(engine, "python")] / own_s, 1)
        for engine, name in names.items()
        if Side(engine, "python") in batch_s
    }


def _details(rounds: Sequence[SideResult], seconds: Sequence[float]) -> dict[str, Any]:
    """Return further figures of riffle's batches: from the last round, and snapshots from the round with the fewest."""
    last = rounds[-1]
    return {
        "batches": len(seconds),
        "snapshots": min(round_["snapshots"] for round_ in rounds),
        "snapshot_key_groups": min(round_["snapshot_key_groups"] for round_ in rounds),
        "key_groups": last["key_groups"],
        "requests_per_batch": last["requests"],
        "upkeep_requests_per_batch": round(last["upkeep_requests"], 1),
        "sealed_bytes_per_batch": round(last["sealed_bytes"]),
        "phases": last["phases"],
        "slots": last["slots"],
    }


def _p95(values: Sequence[float]) -> float:
    """Return the 95th percentile: the smallest value that at most 5 % of the values exceed."""
    return sorted(values)[max(0, -(-19 * len(values) // 20) - 1)]


def _memory(results: Mapping[Side, Sequence[SideResult]]) -> dict[str, Any]:
    peaks = {
        side.engine: statistics.median(round_["peak_pss_mb"] for round_ in rounds)
        for side, rounds in results.items()
        if side.case == "rows"
    }
    peaks |= {
        "encrypted" if side.engine == "encrypted" else "plain": statistics.median(
            round_["peak_pss_mb"] for round_ in rounds
        )
        for side, rounds in results.items()
        if side.case == "encrypted" and side.engine != "before"
    }
    result: dict[str, Any] = {
        f"peak_pss_mb{'' if engine == 'ours' else f'_{engine}'}": round(peak) for engine, peak in peaks.items()
    }
    if "ours" in peaks and "builtin" in peaks:
        result["peak_memory_ratio"] = round(peaks["ours"] / peaks["builtin"], 3)
    return result
