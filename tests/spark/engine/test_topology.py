"""The racks of members: from patterns, or as the members report them."""

from __future__ import annotations

from riffle_spark.spark.engine.topology import racks_of_members


def test_the_first_matching_pattern_wins_over_the_reported_rack() -> None:
    """Patterns ignore case. Without a match, the rack is the reported one."""
    patterns = [("10.0.1.*", "first"), ("NODE-1*.example", "a"), ("*.example", "b")]
    members = [("m0", "10.0.1.7", "own"), ("m1", "10.0.2.8", "own"), ("m2", "node-17.Example", None)]
    members += [("m3", "node-2.example", None), ("m4", "", None)]
    assert racks_of_members(patterns, members) == {"m0": "first", "m1": "own", "m2": "a", "m3": "b", "m4": None}
