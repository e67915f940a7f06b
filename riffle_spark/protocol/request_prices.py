"""Estimate the price of requests to the object store."""

from collections.abc import Mapping
from typing import Final

DOLLARS_PER_REQUEST: Final = {
    "put": 0.005 / 1000,
    "get": 0.0004 / 1000,
    "head": 0.0004 / 1000,
    "list": 0.005 / 1000,
    "delete": 0.0,
}
"""The list price of S3 Standard in us-east-1 by kind of request. Other stores and regions differ, by up to a factor of
about two."""


def price_of(requests: Mapping[str, int]) -> float:
    """Return the estimated price in US dollars of requests, given as counts by kind. Unknown kinds cost nothing."""
    return sum(count * DOLLARS_PER_REQUEST.get(kind, 0.0) for kind, count in requests.items())


def has_price(root: str) -> bool:
    """Return whether the store of a root charges for requests. A folder does not."""
    return not root.startswith("file:")
