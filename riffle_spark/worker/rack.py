"""Where this machine stands: rack and tags. Knows the environment and EC2's metadata service. Does not know settings.

The service is asked as AWS documents it (instance metadata service, version 2): a token first, then with it the
availability zone.
"""

from __future__ import annotations

import http.client
import os
from collections.abc import Mapping

__all__ = ["rack_of_environment", "tags_of_environment", "zone_of_ec2"]

EC2_METADATA = "169.254.169.254:80"
_RACK = "RIFFLE_RACK"
_TAG = "RIFFLE_TAG_"
_SECONDS_A_WAIT = 0.25
"""A silent service costs one such wait, a slow one at most four: to connect, and for each of two answers and bodies."""
_ANSWER_BYTES_MAX = 4096


def rack_of_environment(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return what ``RIFFLE_RACK`` says, ``None`` where it is unset or empty."""
    return environment.get(_RACK) or None


def tags_of_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return what ``RIFFLE_TAG_<NAME>`` say, by name in lower case; empty ones are left out."""
    return {
        name[len(_TAG) :].lower(): value
        for name, value in sorted(environment.items())
        if name.startswith(_TAG) and name != _TAG and value
    }


def zone_of_ec2(address: str | None = None) -> str | None:
    """Return this machine's availability zone, or ``None`` if nobody tells within about a second."""
    connection = http.client.HTTPConnection(address or EC2_METADATA, timeout=_SECONDS_A_WAIT)
    try:
        token = _said(connection, "PUT", "/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "60"})
        where = "/latest/meta-data/placement/availability-zone"
        return _said(connection, "GET", where, {"X-aws-ec2-metadata-token": token}) if token else None
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()


def _said(connection: http.client.HTTPConnection, method: str, path: str, headers: Mapping[str, str]) -> str | None:
    connection.request(method, path, headers=dict(headers))
    answer = connection.getresponse()
    text = answer.read(_ANSWER_BYTES_MAX).decode("ascii").strip()
    return text if answer.status == http.client.OK and text.isprintable() else None
