"""Ten changes that may come, and the files that each would touch: imports must say the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.house.imports import Product

__all__ = ["CHANGES", "Change", "disagreements"]


class Change(NamedTuple):
    """A change, the files it touches (``+`` before a new one), and what it turns on.

    ``turns_on`` are modules of ours, names in them (``module:Name``) or packages of others: whoever imports one of
    these may have to change, so it must be among the files. And each file imports another of them, is imported by one,
    or imports what the change turns on: else it would not come to anybody's mind.
    """

    what: str
    files: tuple[str, ...]
    turns_on: tuple[str, ...]


CHANGES = (
    Change(
        "a window operator",
        (
            "+process.blocks.windows", "process.blocks.block", "process.store_computation", "__init__",
            # a window closes when its time has come, without a row: what is due in a store of columns
            "worker.slot", "worker.run_computation", "state.schemas.plain_columns",
        ),
        ("process.blocks.arrow_function",),
    ),
    Change(
        "a new kind of state",
        (
            "state.schemas.variable_kinds", "state.schemas.variables", "+process.processors.set_cells",
            "process.processors.session", "spark.processors.states", "spark.processors.handle",
            "spark.processors.spark_errors",
        ),
        (
            "process.processors.list_cells", "state.schemas.variable_kinds:ids_of_keys",
            "spark.processors.spark_errors:DOING",
        ),
    ),
    Change(
        "a metric a batch",
        ("messages.slot_orders", "worker.slot", "protocol.batch.batch_report"),
        ("protocol.batch.batch_report:of_receipts",),
    ),
    Change(
        "another snapshot format",
        (
            "state.formats.part_codec", "worker.seal", "worker.upkeep_piece", "offline.switch",
            "state.restore.reader", "state.restore.stack_parts",
        ),
        ("state.formats.part_codec:encode", "state.formats.part_codec:decode"),
    ),
    Change(
        "a placement rule",
        ("settings", "protocol.ownership.view", "assign.model", "assign.demand", "assign.owner_target"),
        ("assign.demand:demand_of",),
    ),
    Change("Google's object store", ("+state.objects.google", "state.objects.open"), ("state.objects.s3",)),
    Change("a bug in counting late rows", ("worker.input", "worker.slot"), ("worker.input:on_time",)),
    Change("a command that reads state", ("+console.state", "console.main"), ("console.dispatch",)),
    Change(
        "Spark 5",
        (
            "spark.engine.jvm", "spark.engine.placed", "spark.engine.inventory", "spark.engine.routing",
            "spark.engine.spark_batch", "spark.configure", "worker.member_folders",
            "spark.processors.pandas_form", "spark.processors.pandas_output", "spark.processors.spark_processor",
            "spark.processors.handle", "spark.processors.states", "spark.processors.spark_errors",
            "spark.frames.stream_frame",
        ),
        ("py4j", "pyspark.sql.pandas", "pyspark.sql.connect", "pyspark.sql.classic"),
    ),
    Change(
        "variables in parts of another shape",
        (
            "state.schemas.variables", "state.copies.elements", "state.copies.part_files", "state.copies.reading",
            "state.copies.element_columns",
        ),
        ("state.copies.elements:element_runs", "state.copies.elements:ElementRun"),
    ),
)  # fmt: skip


def disagreements(product: Product, checkout: Path) -> list[str]:
    """Return, in words, which change names a file that is not there or far off, or leaves out one that must change."""
    return [wrong for change in CHANGES for wrong in _wrong(change, product, checkout)]


def _wrong(change: Change, product: Product, checkout: Path) -> Iterator[str]:
    files = {name for name in change.files if not name.startswith("+")}
    for name in sorted(files - product.modules.keys() - product.inits.keys()):
        yield f"{change.what}: there is no {name}"
    for room in sorted({name[1:].rpartition(".")[0] for name in change.files if name.startswith("+")}):
        if not (checkout / "riffle_spark" / Path(*room.split("."))).is_dir():
            yield f"{change.what}: there is no room {room}"
    turning: set[str] = set()
    for target in change.turns_on:
        importers = product.importers_of(target) - {target.partition(":")[0]}
        turning |= importers
        for name in sorted(importers - files):
            yield f"{change.what}: {name} imports {target} and is not named"
    for name in sorted(files & product.graph.keys() - turning):
        others = files - {name}
        if others and not others & (product.graph[name] | product.importers[name]):
            yield f"{change.what}: {name} has nothing to do with the others"
