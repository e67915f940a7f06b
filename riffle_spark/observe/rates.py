"""Rates of a query over a recent window, as the commands and the status page show them."""

from dataclasses import dataclass
from statistics import fmean
from typing import Final

from riffle_spark.observe.status import Status
from riffle_spark.protocol.request_prices import price_of

RATE_WINDOW_SECONDS: Final = 300.0
_SECONDS_PER_HOUR: Final = 3600


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates up to the time of a status; ``None`` if they are unknown.

    Attributes:
        batches_per_minute: committed batches in the last five minutes. If the driver or its list of batches is younger:
            since the first batch.
        rows_per_second: their input rows, in all stores.
        batch_seconds: their mean duration; ``None`` if there was none.
        requests_per_hour: requests to the store in the last ten minutes, or since the start.
        dollars_per_hour: their estimated price in US dollars; ``None`` also if the store does not charge for requests.
    """

    batches_per_minute: float | None = None
    rows_per_second: float | None = None
    batch_seconds: float | None = None
    requests_per_hour: float | None = None
    dollars_per_hour: float | None = None


def rates_of(status: Status) -> Rates:
    """Return the rates of a status."""
    per_minute = rows_per_second = requests_per_hour = dollars_per_hour = None
    now_ms = status.facts.time_ms
    since_ms = now_ms - RATE_WINDOW_SECONDS * 1000
    if status.batches:
        since_ms = max(since_ms, status.batches[0].time_ms)
    recent = [batch for batch in status.batches if since_ms < batch.time_ms <= now_ms]
    seconds = (now_ms - since_ms) / 1000
    if seconds > 0 and (recent or seconds >= RATE_WINDOW_SECONDS):
        per_minute = len(recent) * 60 / seconds
        rows_per_second = sum(batch.rows for batch in recent) / seconds
    totals = [batch.seconds["total"] for batch in recent or status.batches[-1:] if batch.seconds]
    requests = status.requests
    if requests is not None and requests.seconds > 0:
        requests_per_hour = sum(requests.by_kind.values()) * _SECONDS_PER_HOUR / requests.seconds
        if "requests_price_dollars" in status.facts.counters:
            dollars_per_hour = price_of(requests.by_kind) * _SECONDS_PER_HOUR / requests.seconds
    return Rates(per_minute, rows_per_second, fmean(totals) if totals else None, requests_per_hour, dollars_per_hour)
