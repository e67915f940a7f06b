"""Spark's aggregate functions by the names of their classes, as plans have them, and how their buffers merge; others
are refused by name. Knows names. Does not know formulas.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast, get_args

import pyarrow as pa

from riffle_spark.errors import ConfigError
from riffle_spark.process.merging import (
    merged_lists,
    merged_moments,
    merged_picks,
    merged_sketches,
    merged_sums,
    shared_sketches,
)
from riffle_spark.process.merging.merge_function import MergeFunction
from riffle_spark.process.merging.user_aggregate import MergedByUser, UserAggregate

__all__ = ["COLLECTED", "HASHED", "MergeOptions", "merge_function"]


@dataclass(frozen=True, slots=True)
class MergeOptions:
    """What a plan says of a function beside its class and buffers.

    ``overflow`` is the name of Spark's ``EvalMode``: what becomes of a sum or average that does not fit. ``delimiter``
    is what ``listagg`` puts between texts, bytes between bytes; ``collected_max`` is how many values a key may collect;
    ``relative_error`` is what ``approx_count_distinct`` was asked for, its ``relativeSD``; ``accuracy`` and
    ``percentages``, one or several, what ``percentile_approx`` was; ``register_bits`` and ``may_differ`` what sketches
    of Apache DataSketches were, ``lgConfigK`` and ``allowDifferentLgConfigK``; ``own`` is a user's function.
    """

    overflow: merged_sums.Overflow = "LEGACY"
    delimiter: str | bytes = ""
    collected_max: int = 10_000
    relative_error: float = 0.05
    accuracy: int = 10_000
    percentages: float | tuple[float, ...] = 0.5
    register_bits: int = 12
    may_differ: bool = False
    own: UserAggregate | None = None

    @staticmethod
    def of_facts(facts: Iterable[tuple[str, str]], own: object | None = None) -> "MergeOptions":
        """Return what a function's facts say, by Spark's names of them; others change nothing."""
        assert own is None or isinstance(own, UserAggregate)
        usual, told = MergeOptions(), dict(facts)
        overflow = told.get("evalMode", usual.overflow)
        assert overflow in get_args(merged_sums.Overflow), f"evalMode is {overflow}"
        return MergeOptions(
            cast(merged_sums.Overflow, overflow),
            told.get("delimiter", usual.delimiter),
            relative_error=float(told.get("relativeSD", usual.relative_error)),
            accuracy=int(told.get("accuracy", usual.accuracy)),
            percentages=_numbers(told["percentages"]) if "percentages" in told else usual.percentages,
            register_bits=int(told.get("lgConfigK", usual.register_bits)),
            may_differ=told.get("allowDifferentLgConfigK") == "True",
            own=own,
        )


def _numbers(text: str) -> float | tuple[float, ...]:
    """Return one number, or those of a list in brackets."""
    return tuple(float(one) for one in text[1:-1].split(", ") if one) if text.startswith("[") else float(text)


_MERGES: Mapping[str, Callable[[MergeOptions], MergeFunction]] = {
    "Count": lambda _: merged_sums.MergedCount(),
    "Sum": lambda options: merged_sums.MergedSum(options.overflow),
    "Average": lambda options: merged_sums.MergedAverage(options.overflow),
    "Product": lambda _: merged_sums.MergedProduct(),
    "BitAndAgg": lambda _: merged_sums.MergedBits("and"),
    "BitOrAgg": lambda _: merged_sums.MergedBits("or"),
    "BitXorAgg": lambda _: merged_sums.MergedBits("xor"),
    "Max": lambda _: merged_picks.MergedExtreme(greatest=True),
    "Min": lambda _: merged_picks.MergedExtreme(greatest=False),
    "MaxBy": lambda _: merged_picks.MergedExtremeBy(greatest=True),
    "MinBy": lambda _: merged_picks.MergedExtremeBy(greatest=False),
    "First": lambda _: merged_picks.MergedPick(latest=False),
    "Last": lambda _: merged_picks.MergedPick(latest=True),
    "StddevPop": lambda _: merged_moments.MergedMoments(order=2),
    "StddevSamp": lambda _: merged_moments.MergedMoments(order=2),
    "VariancePop": lambda _: merged_moments.MergedMoments(order=2),
    "VarianceSamp": lambda _: merged_moments.MergedMoments(order=2),
    "RegrReplacement": lambda _: merged_moments.MergedMoments(order=2),
    "Skewness": lambda _: merged_moments.MergedMoments(order=3),
    "Kurtosis": lambda _: merged_moments.MergedMoments(order=4),
    "CovPopulation": lambda _: merged_moments.MergedCoMoments(squares=False),
    "CovSample": lambda _: merged_moments.MergedCoMoments(squares=False),
    "RegrSXY": lambda _: merged_moments.MergedCoMoments(squares=False),
    "Corr": lambda _: merged_moments.MergedCoMoments(squares=True),
    "RegrR2": lambda _: merged_moments.MergedCoMoments(squares=True),
    "RegrSlope": lambda _: merged_moments.MergedRegression(),
    "RegrIntercept": lambda _: merged_moments.MergedRegression(),
    "HyperLogLogPlusPlus": lambda options: merged_sketches.MergedDistinct(options.relative_error),
    "HllSketchAgg": lambda options: shared_sketches.HashSketch(options.register_bits),
    "HllUnionAgg": lambda options: shared_sketches.SketchUnion(options.may_differ),
    "ApproximatePercentile": lambda options: merged_sketches.MergedQuantiles(options.accuracy, options.percentages),
    "CollectList": lambda options: merged_lists.MergedList(options.collected_max),
    "CollectSet": lambda options: merged_lists.MergedSet(options.collected_max),
    "ListAgg": lambda options: merged_lists.MergedText(options.collected_max, options.delimiter),
}

COLLECTED = frozenset({"ApproximatePercentile", "CollectList", "CollectSet", "HllSketchAgg", "HllUnionAgg", "ListAgg"})
"""Functions of which a row's buffer is its value, or of HllSketchAgg the words of its hash, and the result what
``finish`` returns, not Spark's evaluation.
"""

HASHED = frozenset({"HyperLogLogPlusPlus"})
"""Functions of which a row's buffer is the hash of its value, and ``finish`` returns Spark's buffer, as one struct."""

_WAYS_OUT: Mapping[str, str] = {
    "Percentile": "It would keep every value. Use percentile_approx, which has the same answer for few values.",
    "Mode": "It would keep every value. Count by key and value, and choose downstream.",
    "HistogramNumeric": "Group by buckets of your own, such as floor(x / 10).",
}


def merge_function(name: str, buffers: Sequence[pa.DataType], options: MergeOptions | None = None) -> MergeFunction:
    """Return how buffers of these types merge, of the function of this class; ``ConfigError`` if unknown."""
    options = options or MergeOptions()
    if name not in _MERGES and options.own is None:
        raise ConfigError(
            f"Spark's aggregate function {name} cannot be kept from batch to batch",
            remedy=_WAYS_OUT.get(name, "Use another one, or a function of your own.")
            + f" Known: {', '.join(_MERGES)}.",
            id="RIFFLE-0179",
        )
    found = MergedByUser(options.own) if options.own is not None else _MERGES[name](options)
    if not found.state(buffers):
        raise ConfigError(
            f"Spark's aggregate function {name} cannot be kept with buffers of {', '.join(map(str, buffers))}",
            remedy="Cast its input to another type.",
            id="RIFFLE-0180",
        )
    return found
