"""Options that are times, such as ``--since``, and options that are durations, such as ``--wait``."""

from collections.abc import Callable
from functools import wraps
from typing import cast

import click

ParseDuration = Callable[[click.Context | None, click.Parameter, str | None], float | None]


def duration_parser(least_seconds: float = 0.0) -> ParseDuration:
    """Return the callback of an option that is a duration of at least ``least_seconds``. The command gets seconds."""

    def parse(_context: click.Context | None, parameter: click.Parameter, text: str | None) -> float | None:
        from riffle_spark.setting_values import seconds

        if text is None:
            return None
        try:
            return cast(float, seconds(least_seconds)(text))
        except ValueError as error:
            raise click.UsageError(
                f"{parameter.opts[0]} {text!r} is not allowed.\n  What to do: Give {error}."
            ) from None

    return parse


def parse_time_option(_context: click.Context | None, parameter: click.Parameter, text: str | None) -> int | None:
    """Return a time in milliseconds since the epoch."""
    from riffle_spark.offline.periods import parse_time

    if text is None:
        return None
    try:
        return parse_time(text)
    except (ValueError, OverflowError):
        raise click.UsageError(
            f"{parameter.opts[0]} {text!r} is not a time.\n"
            "  What to do: Give an ISO time with its zone, such as 2026-03-01T14:05Z or 2026-03-01T14:05+01:00, or a "
            "duration before now, such as 15m."
        ) from None


def period_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add ``--since`` and ``--until``, which the command gets as ``period``."""
    since_help = (
        "Show only what was not earlier: an ISO time with its zone (2026-03-01T14:05Z), or a duration before now (15m)."
    )

    @click.option("--since", metavar="TIME", callback=parse_time_option, help=since_help)
    @click.option("--until", metavar="TIME", callback=parse_time_option, help="Show only what was not later.")
    @wraps(command)
    def with_period(*, since: int | None, until: int | None, **options: object) -> None:
        from riffle_spark.offline.periods import Period

        command(period=Period(since, until), **options)

    return with_period
