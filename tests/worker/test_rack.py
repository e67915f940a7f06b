"""Where an executor stands: its environment first, then EC2's metadata service, which may be anything."""

from __future__ import annotations

import time

import pytest

from riffle_spark.worker.census import rack_of_environment, tags_of_environment, zone_of_ec2
from tests.kit.servers.metadata_service import HANG_SECONDS, metadata_service


def test_the_zone_is_what_the_metadata_service_says() -> None:
    """A token is got first and handed in with the question."""
    with metadata_service() as address:
        assert zone_of_ec2(address) == "eu-west-1b"


@pytest.mark.parametrize(("token", "status"), [("secret", 403), ("secret", 404), ("", 200), ("a\nb", 200)])
def test_a_service_that_refuses_is_no_rack(token: str, status: int) -> None:
    """No token, no zone, and no error."""
    with metadata_service(token, status) as address:
        assert zone_of_ec2(address) is None


def test_a_service_that_hangs_is_given_up_soon() -> None:
    """A census does not wait for what may never come."""
    with metadata_service(hangs=True) as address:
        started = time.monotonic()
        assert zone_of_ec2(address) is None
        assert time.monotonic() - started < HANG_SECONDS / 2


@pytest.mark.parametrize("address", ["127.0.0.1:1", "no.such.host.invalid:80"])
def test_where_nobody_answers_there_is_no_rack(address: str) -> None:
    """A machine outside EC2."""
    assert zone_of_ec2(address) is None


def test_rack_and_tags_come_from_the_environment() -> None:
    """Names of tags are in lower case; what is empty is not said."""
    said = {
        "RIFFLE_RACK": "r1",
        "RIFFLE_TAG_ZONE": "A",
        "RIFFLE_TAG_Node_Pool": "spot",
        "RIFFLE_TAG_X": "",
        "PATH": "/",
    }
    assert rack_of_environment(said) == "r1"
    assert tags_of_environment(said) == {"zone": "A", "node_pool": "spot"}
    assert rack_of_environment({"RIFFLE_RACK": ""}) is None
    assert tags_of_environment({"RIFFLE_TAG_": "nameless"}) == {}
