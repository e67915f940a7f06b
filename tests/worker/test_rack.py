"""Where an executor stands, by its environment."""

from __future__ import annotations

from riffle_spark.worker.census import rack_of_environment, tags_of_environment


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
