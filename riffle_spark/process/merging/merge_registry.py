"""Spark's aggregate functions by the class names in plans, and how their buffers merge."""

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

_LIST_MAX = 10_000
"""Values that a collecting function may keep per key."""


@dataclass(frozen=True, slots=True)
class MergeOptions:
    """The arguments of a function that its merge needs.

    ``overflow`` is the name of Spark's ``EvalMode``. ``delimiter`` is that of ``listagg``. ``relative_error`` is the
    ``relativeSD`` of ``approx_count_distinct``. ``accuracy`` and ``percentages`` are those of ``percentile_approx``.
    ``register_bits`` (``lgConfigK``) and ``may_differ`` (``allowDifferentLgConfigK``) are those of HLL sketches.
    """

    overflow: merged_sums.Overflow = "LEGACY"
    delimiter: str | bytes = ""
    relative_error: float = 0.05
    accuracy: int = 10_000
    percentages: float | tuple[float, ...] = 0.5
    register_bits: int = 12
    may_differ: bool = False
    user_function: UserAggregate | None = None

    @staticmethod
    def from_spec(options: Iterable[tuple[str, str]], user_function: object | None = None) -> "MergeOptions":
        """Return the options of a ``FunctionSpec``. Names that no merge needs are ignored."""
        assert user_function is None or isinstance(user_function, UserAggregate)
        default = MergeOptions()
        values = dict(options)
        overflow = values.get("evalMode", default.overflow)
        assert overflow in get_args(merged_sums.Overflow), f"evalMode is {overflow}"
        return MergeOptions(
            cast(merged_sums.Overflow, overflow),
            values.get("delimiter", default.delimiter),
            relative_error=float(values.get("relativeSD", default.relative_error)),
            accuracy=int(values.get("accuracy", default.accuracy)),
            percentages=_numbers(values["percentages"]) if "percentages" in values else default.percentages,
            register_bits=int(values.get("lgConfigK", default.register_bits)),
            may_differ=values.get("allowDifferentLgConfigK") == "True",
            user_function=user_function,
        )


def _numbers(text: str) -> float | tuple[float, ...]:
    """Parse one number, or a list of numbers in brackets."""
    return tuple(float(number) for number in text[1:-1].split(", ") if number) if text[0] == "[" else float(text)


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
    "CollectList": lambda _: merged_lists.MergedList(_LIST_MAX),
    "CollectSet": lambda _: merged_lists.MergedSet(_LIST_MAX),
    "ListAgg": lambda options: merged_lists.MergedText(_LIST_MAX, options.delimiter),
}

COLLECTED = frozenset({"ApproximatePercentile", "CollectList", "CollectSet", "HllSketchAgg", "HllUnionAgg", "ListAgg"})
"""Functions whose rows carry the value (HllSketchAgg: the words of its hash), and whose result is ``finish``."""

HASHED = frozenset({"HyperLogLogPlusPlus"})
"""Functions whose rows carry the value's hash, and whose ``finish`` returns Spark's buffer as one struct."""

_REMEDIES: Mapping[str, str] = {
    "Percentile": "Use percentile_approx, which returns the same value for few rows.",
    "Mode": "Count by key and value, and choose the greatest count downstream.",
    "HistogramNumeric": "Group by buckets, such as floor(x / 10).",
}


def merge_function(name: str, buffers: Sequence[pa.DataType], options: MergeOptions | None = None) -> MergeFunction:
    """Return how buffers of these types merge in Spark's function of this class.

    Raises ``ConfigError`` if the function or the types are not supported.
    """
    options = options or MergeOptions()
    if options.user_function is not None:
        merge: MergeFunction = MergedByUser(options.user_function)
    elif name in _MERGES:
        merge = _MERGES[name](options)
    else:
        raise ConfigError(
            f"Spark's aggregate function {name} is not supported in stateful queries",
            remedy=f"{_REMEDIES.get(name, 'Use another function, or user_aggregate.')} "
            f"Supported: {', '.join(_MERGES)}.",
            id="RIFFLE-0179",
        )
    if not merge.state_types(buffers):
        raise ConfigError(
            f"Spark's aggregate function {name} is not supported with buffers of {', '.join(map(str, buffers))}",
            remedy="Cast its input to another type.",
            id="RIFFLE-0180",
        )
    return merge
