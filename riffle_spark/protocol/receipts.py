"""Check that the receipts of a batch are complete, and compute their changes of the manifest."""

from collections import Counter
from collections.abc import Collection, Sequence

from riffle_spark import errors
from riffle_spark.messages.slot_orders import Order, Receipt
from riffle_spark.protocol.ports import StaleRows, Work
from riffle_spark.state.log.manifest import EMPTY, Address, Entry, Link, Manifest

_CHECK_EXECUTORS = "Check why executors are lost"
_CHECK_RESULT = (
    "Check whether the sink releases cached RDDs or reads the DataFrame of an earlier batch, and whether executors "
    "lose local files"
)
_CHECK_LOCALITY = (
    "Check why tasks do not run on the executors with copies: busy executors, or a short spark.locality.wait"
)


def check_receipts(receipts: Sequence[Receipt], orders: Sequence[Order]) -> None:
    """Raise the error of a failed slot, and ``ConflictError`` unless every slot of every order has one receipt.

    An error of a local disk is raised only if there is no other, because only this error ends when the slot runs
    elsewhere.
    """
    failed_receipts = sorted((receipt for receipt in receipts if receipt.error), key=is_refused)
    if failed_receipts:
        raise error_of(failed_receipts[0])
    answered_slots = Counter((receipt.store, receipt.slot) for receipt in receipts)
    expected_slots = Counter((order.store, slot) for order in orders for slot in order.slots)
    if answered_slots != expected_slots:
        missing = list((expected_slots - answered_slots).elements())
        extra = list((answered_slots - expected_slots).elements())
        raise errors.ConflictError(
            f"The receipts of the slots are not complete: missing {missing[:5]}, unexpected {extra[:5]}.",
            remedy="Restart the query. Nothing was committed.",
            id="RIFFLE-0512",
        )


def is_refused(receipt: Receipt) -> bool:
    """Return whether a slot failed because its executor's local disk refused."""
    return receipt.error is not None and receipt.error[0] == errors.LocalDiskError.__name__


def error_of(receipt: Receipt) -> errors.RiffleError:
    """Return the error that a slot's receipt reports, with its executor as the place."""
    class_name, problem, remedy, where, id = receipt.error or ("RiffleError", "", "", "", "")
    place = f"{where}, executor {receipt.executor}" if where else f"store {receipt.store}, executor {receipt.executor}"
    error_class: type[errors.RiffleError] = getattr(errors, class_name, errors.RiffleError)
    return error_class(problem, remedy=remedy, where=place, id=id)


def check_counts(receipts: Sequence[Receipt], work: Work) -> None:
    """Raise ``ConflictError`` unless as many rows were received as were routed, per store.

    The count may be too high if Spark ran a task of the shuffle twice. So a difference is counted again exactly.
    """
    received_rows: Counter[str] = Counter()
    for receipt in receipts:
        received_rows[receipt.store] += receipt.rows
    for store, routed_rows in work.count_routed_rows().items():
        if routed_rows is None or routed_rows == received_rows[store]:
            continue
        exact = work.recount(store)
        if exact != received_rows[store]:
            # Cause: The source, or a step before the operator, returned other rows when Spark computed the input again.
            raise errors.ConflictError(
                f"{exact} rows were routed to store {store!r}, but its slots received {received_rows[store]}.",
                remedy="Restart the query. Nothing was committed. If it happens again, make the source return the same "
                "rows each time it is read.",
                where=store,
                id="RIFFLE-0513",
            )


def changes_of(manifest: Manifest, receipts: Sequence[Receipt]) -> dict[Address, Entry]:
    """Return the manifest entries that the parts of these receipts extend, by (store, key-group).

    A part with the whole state of its key-group replaces the snapshot and all earlier links.
    """
    changes: dict[Address, Entry] = {}
    entries = manifest.entries
    for receipt in receipts:
        for part, link in zip(receipt.parts, receipt.links(), strict=True):
            address = (receipt.store, part.key_group)
            before = EMPTY if part.is_whole else entries.get(address, EMPTY)
            changes[address] = before.add_link(link, part.timer_ms)
    return changes


def outputs_of(receipts: Sequence[Receipt]) -> tuple[tuple[str, Link], ...]:
    """Return the sealed output rows that these receipts list, as (store, link) pairs."""
    return tuple((receipt.store, receipt.link(receipt.output)) for receipt in receipts if receipt.output)


def all_disks_refused_error(error: errors.LocalDiskError) -> errors.LocalDiskError:
    """Return the error of a batch for which the disk of every executor refuses. ``error`` is the last disk's error."""
    return errors.LocalDiskError(
        f"The local disk of every executor refuses: {error.problem}",
        remedy=f"{error.remedy} Or add an executor. Then start the query again. The batch was not committed.",
        where=error.where,
        id="RIFFLE-0514",
    )


def last_run_error(
    version: int,
    runs: int,
    error: StaleRows | errors.Misplaced | errors.OutOfDate,
    lost_executors: Collection[str],
    root: str,
) -> errors.UnavailableError:
    """Return the error of a batch after its last allowed run.

    ``runs`` counts the runs, ``error`` is the error of the last run, and ``lost_executors`` were lost during the runs.
    """
    problem = f"Batch {version} lost its place in each of {runs} runs: {error}"
    if isinstance(error, StaleRows):
        problem = f"Batch {version} lost rows in each of {runs} runs while its sink read them: {error}"
    if lost_executors:
        remedy = f"{_CHECK_EXECUTORS} ({', '.join(sorted(lost_executors))} during the batch)"
    elif isinstance(error, StaleRows):
        remedy = _CHECK_RESULT
    elif isinstance(error, errors.Misplaced):
        remedy = _CHECK_LOCALITY
    else:
        remedy = _CHECK_EXECUTORS
    return errors.UnavailableError(
        problem, remedy=f"{remedy}. Then restart the query. Nothing was committed.", where=root, id="RIFFLE-0515"
    )
