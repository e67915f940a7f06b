"""Racks from patterns and from the members themselves."""

from __future__ import annotations

from riffle_spark.spark.engine.topology import Topology

HOSTS = ["10.0.1.7", "10.0.2.8", "10.0.3.9"]
MEMBERS = [(f"m{number}", host, f"own-{number}") for number, host in enumerate(HOSTS)]


def test_patterns_go_before_what_members_say() -> None:
    """What no pattern answers the member does; a member that reports no rack has none."""
    topology = Topology([("10.0.1.*", "first"), ("10.0.3.9", "third")])
    assert topology.racks(MEMBERS) == {"m0": "first", "m1": "own-1", "m2": "third"}
    assert Topology([]).racks([*MEMBERS, ("m9", "", None)]) == {
        "m0": "own-0", "m1": "own-1", "m2": "own-2", "m9": None,
    }  # fmt: skip


def test_the_first_pattern_that_fits_counts_whatever_the_case() -> None:
    """A host name is the same in upper and lower case; the order of patterns is the user's."""
    topology = Topology([("NODE-1*.example", "a"), ("*.example", "b")])
    hosts = ["node-17.Example", "node-2.example", "elsewhere"]
    assert topology.racks([(host, host, None) for host in hosts]) == dict(zip(hosts, ["a", "b", None], strict=True))
