"""What the slots' answers must add up to, and what they change. Pure; knows receipts and manifests only."""

from collections import Counter
from collections.abc import Collection, Sequence

from riffle_spark import errors
from riffle_spark.messages.slot_orders import Order, Part, Receipt
from riffle_spark.protocol.ports import StaleRows, Work
from riffle_spark.state.log.manifest import Address, Entry, Link, Manifest

__all__ = [
    "changes_of",
    "check_counts",
    "check_receipts",
    "error_of",
    "is_refused",
    "lost_place",
    "no_disk_left",
    "outputs_of",
]

_EXECUTORS_GO = "look at why executors are lost"
_RESULT_GOES = (
    "look at what drops what Spark keeps: a sink that releases RDDs which are not its own, or that reads the frame of "
    "an earlier batch, or executors whose disks lose files"
)
_TASKS_GO_ELSEWHERE = "look at why tasks do not run where their copies are: busy executors, a short spark.locality.wait"


def check_receipts(receipts: Sequence[Receipt], orders: Sequence[Order]) -> None:
    """Raise what a slot failed with, and ``ConflictError`` unless every slot of every order answered exactly once.

    A disk that refuses comes last: nothing else would be mended by running the slot elsewhere.
    """
    failed = sorted((receipt for receipt in receipts if receipt.error), key=is_refused)
    if failed:
        raise error_of(failed[0])
    answered = Counter((receipt.store, receipt.slot) for receipt in receipts)
    wanted = Counter((order.store, slot) for order in orders for slot in order.slots)
    if answered != wanted:
        missing = list((wanted - answered).elements())
        extra = list((answered - wanted).elements())
        raise errors.ConflictError(
            f"the slots' receipts are not complete: missing {missing[:5]}, not asked for {extra[:5]}",
            remedy="restart the query; nothing was committed",
            id="RIFFLE-0512",
        )


def is_refused(receipt: Receipt) -> bool:
    """Tell whether a slot failed because its executor's local disk refused."""
    return receipt.error is not None and receipt.error[0] == errors.LocalDiskError.__name__


def error_of(receipt: Receipt) -> errors.RiffleError:
    """Return the error that a slot answered with."""
    class_name, problem, remedy, where, id = receipt.error or ("RiffleError", "", "", "", "")
    place = f"{where}, executor {receipt.executor}" if where else f"store {receipt.store}, executor {receipt.executor}"
    error_class: type[errors.RiffleError] = getattr(errors, class_name, errors.RiffleError)
    return error_class(problem, remedy=remedy, where=place, id=id)


def check_counts(receipts: Sequence[Receipt], work: Work) -> None:
    """Raise ``ConflictError`` unless as many rows were received as were routed, per store.

    The count beside the shuffle may be too high where Spark ran a task of it twice; so a difference is counted anew,
    exactly.
    """
    received: Counter[str] = Counter()
    for receipt in receipts:
        received[receipt.store] += receipt.rows
    for store, routed in work.routed().items():
        if routed is None or routed == received[store]:
            continue
        exact = work.recount(store)
        if exact != received[store]:
            raise errors.ConflictError(
                f"{exact} rows were routed to store {store!r}, its slots received {received[store]}",
                remedy="restart the query; nothing was committed. If it happens again, the source returns other rows "
                "when it is read again: make it deterministic",
                where=store,
                id="RIFFLE-0513",
            )


def changes_of(manifest: Manifest, receipts: Sequence[Receipt]) -> dict[Address, Entry]:
    """Return the entries that the receipts' parts extend. A part tells its key-group's earliest timer anew; where there
    is no part, the entry's timer stays.
    """
    return {
        (receipt.store, part.key_group): _extended(manifest, receipt, part)
        for receipt in receipts
        for part in receipt.parts
    }


def _extended(manifest: Manifest, receipt: Receipt, part: Part) -> Entry:
    return manifest.entry(receipt.store, part.key_group).extended(receipt.link(part), part.timer_ms)


def outputs_of(receipts: Sequence[Receipt]) -> tuple[tuple[str, Link], ...]:
    """Return the sealed output rows of a batch: (store, link)."""
    return tuple((receipt.store, receipt.link(receipt.output)) for receipt in receipts if receipt.output)


def no_disk_left(error: errors.LocalDiskError) -> errors.LocalDiskError:
    """Return the error for a batch where every executor's disk refuses, by the last one's."""
    return errors.LocalDiskError(
        f"no executor is left whose local disk does not refuse: {error.problem}",
        remedy=f"{error.remedy}; or add an executor. Then start the query again, nothing was committed",
        where=error.where,
        id="RIFFLE-0514",
    )


def lost_place(
    version: int, runs: int, error: StaleRows | errors.Misplaced | errors.OutOfDate, gone: Collection[str], root: str
) -> errors.UnavailableError:
    """Return the error for a batch, by its last run's error and which executors went while it was run."""
    if gone:
        remedy = f"{_EXECUTORS_GO} ({', '.join(sorted(gone))} while the batch was run)"
    elif isinstance(error, StaleRows):
        remedy = _RESULT_GOES
    elif isinstance(error, errors.Misplaced):
        remedy = _TASKS_GO_ELSEWHERE
    else:
        remedy = _EXECUTORS_GO
    problem = "lost its place"
    if isinstance(error, StaleRows):
        problem = "lost rows while its sink read them" + ("" if gone else ", though no executor was seen to go")
    return errors.UnavailableError(
        f"batch {version} was run {runs} times and each time {problem}: {error}",
        remedy=f"{remedy}; the query can be restarted, nothing was committed",
        where=root,
        id="RIFFLE-0515",
    )
