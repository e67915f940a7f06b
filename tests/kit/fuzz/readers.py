"""The decoders that cover each file which reads external bytes or text, or the reason why a file needs none.

A test compares this table with the code.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

__all__ = ["READERS", "READS"]

READS = re.compile(
    r"(?:json|tomllib|pickle)\.loads\(|Serializer\(\)\.loads\(|b64decode\(|open_stream\(|\bopen_file\(|read_schema\(|"
    r"unpack_from\(|decompress\(|gzip\.open\(|input_stream\(pa\.|HTTPConnection\(|parse_response\(|fromstring\("
)
"""The calls that read external bytes in Python and Arrow.

Object names, file names and answers that boto3 has parsed have no such call. Their decoders are `names`, `folder of a
member` and `answer of S3`.
"""

_OF_SPARK = "Spark's JVM tells it in this process, and has read it itself"
_OF_STORE = "the store's answers; tests/state/objects/test_cloud_answers.py sends damaged ones"
_OWN_FUNCTION = "the user's own function, as PySpark pickled it in this process"

READERS: Mapping[str, tuple[str, ...] | str] = {
    "messages/first_version_orders": ("first version order",),
    "messages/slot_orders": ("order", "receipt"),
    "messages/upkeep_orders": ("upkeep order", "upkeep receipt", "census order", "census"),
    "observe/status": ("status",),
    "offline/checkpoint": ("checkpoint",),
    "offline/doctor/machine": "the answer of a program that the same process has started",
    "offline/export": "tests/offline/test_export.py reads damaged descriptions and files",
    "offline/state_edits": "the value that the user of a command has typed",
    "offline/reshard": "a temporary file that the same process has just written",
    "process/plans/cut": _OF_SPARK,
    "process/plans/plan_values": _OF_SPARK,
    "process/types/spark_schemas": ("columns of Spark",),
    "protocol/batch/enter": _OF_SPARK,
    "protocol/batch/mailbox": ("mailbox",),
    "protocol/batch/stored_requests": "its own JSON; the rest is in `record`",
    "protocol/shards": ("record",),
    "protocol/source_lag": _OF_SPARK,
    "settings": ("settings file", "settings of Spark", "settings of a call"),
    "simulate/scenario": ("scenario", "packed scenario"),
    "simulate/world_file": ("world",),
    "spark/engine/inventory": _OF_SPARK,
    "spark/engine/kafka": _OF_SPARK,
    "spark/engine/routing": _OF_SPARK,
    "spark/engine/spark_batch": _OF_SPARK,
    "spark/engine/tick": _OF_SPARK,
    "spark/plans/aggregate_plan": _OF_SPARK,
    "spark/plans/plan_nodes": _OF_SPARK,
    "spark/plans/plan_reader": _OF_SPARK,
    "spark/plans/planned_function": _OWN_FUNCTION,
    "spark/processors/spark_processor": _OWN_FUNCTION,
    "spark/queries/group_stages": _OWN_FUNCTION,
    "spark/queries/stream_query": _OF_SPARK,
    "state/copies/journal": ("journal", "journal entry"),
    "state/formats/arrow_messages": ("part", "encrypted body", "packed schema"),
    "state/formats/arrow_schemas": ("packed schema", "schema text"),
    "state/formats/blocks": ("block",),
    "state/formats/bounded_json": ("record", "record body", "log"),
    "state/formats/json_keys": "the key or value that the user of a command has typed",
    "state/formats/part_codec": ("part", "encrypted part", "encrypted body"),
    "state_tables/ranged_rows": "a snapshot's start; one that cannot be read like this is read as a whole part",
    "state/log/record": ("record", "record body", "log"),
    "state/objects/azure": _OF_STORE,
    "state/objects/azure_client": "a key that the process got in its own environment",
    "state/objects/gcs": _OF_STORE,
    "state/objects/encryption": ("keys of a file", "keys of a variable", "encrypted part"),
    "state/schemas/history": ("schema text",),
    "state/schemas/store_schema": ("schema text",),
    "state/schemas/variables": ("schema text",),
    "testing/query_runs": "a file of Spark's checkpoint that the same process has just written",
}
