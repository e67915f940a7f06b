"""Ten changes that may come, and the files that each would touch: imports must not know of more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.house.imports import Product

__all__ = ["CHANGES", "Change", "disagreements"]


class Change(NamedTuple):
    """A change, the files it touches (``+`` before a new one), and what it turns on.

    ``turns_on`` are modules of ours, names in them (``module:Name``) or packages of others: whoever imports one of
    these may have to change, so it must be among the files.
    """

    what: str
    files: tuple[str, ...]
    turns_on: tuple[str, ...]


CHANGES = (
    Change(
        "a window operator",
        ("+process.blocks.windows", "process.blocks.aggregates", "protocol.operator"),
        ("process.blocks.aggregates:Aggregates",),
    ),
    Change(
        "a new kind of state",
        (
            "state.schemas.variable_kinds", "state.schemas.variables", "+process.processors.set_cells",
            "process.processors.session", "spark.processors.states",
        ),
        ("process.processors.list_cells", "state.schemas.variable_kinds:ListRows"),
    ),
    Change(
        "a metric a batch",
        ("messages.slot_orders", "worker.slot", "protocol.batch.batch_report"),
        ("protocol.batch.batch_report:of_receipts",),
    ),
    Change(
        "another snapshot format",
        ("state.formats.part_codec", "worker.seal", "worker.snapshot", "offline.reshard"),
        ("state.formats.part_codec:encode",),
    ),
    Change(
        "a placement rule",
        ("settings", "protocol.ownership.view", "assign.model", "assign.demand", "assign.owner_target", "assign.owner_weights"),
        ("assign.demand:demand_of",),
    ),
    Change("Google's object store", ("+state.objects.google", "state.objects.open"), ("state.objects.s3",)),
    Change("a bug in counting late rows", ("worker.input", "worker.slot"), ("worker.input:on_time",)),
    Change(
        "a command that reads state", ("+console.state", "console.main", "console.options"), ("console.dispatch",)
    ),
    Change("Spark 5", ("spark.engine.jvm", "spark.engine.placed"), ("py4j", "pyspark.sql.pandas", "pyspark.sql.connect", "pyspark.serializers", "pyspark.cloudpickle")),
    Change("another embedded store", ("state.copies.lmdb_file", "state.copies.copy"), ("lmdb",)),
)  # fmt: skip


def disagreements(product: Product, checkout: Path) -> list[str]:
    """Return, in words, which change names a file that is not there, or leaves out one that imports speak of."""
    return [wrong for change in CHANGES for wrong in _wrong(change, product, checkout)]


def _wrong(change: Change, product: Product, checkout: Path) -> Iterator[str]:
    files = {name for name in change.files if not name.startswith("+")}
    for name in sorted(files - product.modules.keys()):
        yield f"{change.what}: there is no {name}"
    for room in sorted({name[1:].rpartition(".")[0] for name in change.files if name.startswith("+")}):
        if not (checkout / "riffle_spark" / Path(*room.split("."))).is_dir():
            yield f"{change.what}: there is no room {room}"
    for target in change.turns_on:
        module = target.partition(":")[0]
        for name in sorted(product.importers_of(target) - files - {module}):
            yield f"{change.what}: {name} imports {target} and is not named"
