"""Compare the names in the setting ``accept`` with what a start of the query needs.

``accept`` is meant for one restart. A name that stays in the configuration would silence a later refusal. So each start
warns of names that match nothing, of names that nothing needs, and of results that continue with another meaning.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from riffle_spark.protocol.input_columns import is_same_name
from riffle_spark.protocol.operator import TIMERS, Operator
from riffle_spark.state.log.record import Record
from riffle_spark.state.schemas.store_schema import meanings_in, operator_in, schema_of_text

__all__ = ["acceptance_warnings"]


def acceptance_warnings(tail: Record | None, operators: Sequence[Operator], accepted: Sequence[str]) -> Iterator[str]:
    """Yield a warning for each name in ``accepted`` that has no effect, and for each result whose meaning changes.

    ``tail`` is the newest record before the start, ``None`` if the root is empty. Stores whose batches are missing are
    reported with the first batch (``BatchMeasures.began``), so they give no warning here.
    """
    if not accepted:
        return
    schemas = tail.schemas if tail is not None else {}
    stale = tail.stale_stores if tail is not None else {}
    unchanged = {operator.store for operator in operators if operator.store in schemas} - stale.keys()
    known = {*schemas, *stale, *(operator.store for operator in operators)}
    changed: set[str] = set()
    for operator in operators:
        text = schemas.get(operator.store)
        stored = {**meanings_in(text), **operator_in(text)} if text is not None else {}
        declared = {**(operator.meanings or {}), **operator.results}
        known |= stored.keys() | declared.keys() | {TIMERS} | _columns(operator.store, text)
        for name in _named(stored.keys() & declared.keys(), accepted):
            if is_same_name(stored[name], declared[name], case_sensitive=operator.case_sensitive):
                unchanged.add(name)
                continue
            changed.add(name)
            yield (
                f"store {operator.store!r} continues with {stored[name]} under {name!r}, and the job declares "
                f"{declared[name]}: `accept` names it\n  What to do: remove {name!r} from `accept`"
            )
    if tail is None:
        unchanged |= known
    for name in sorted(_named(unchanged - changed - stale.keys(), accepted)):
        yield (
            f"`accept` names {name!r}, and nothing of that name needs to be accepted\n  What to do: remove {name!r} "
            "from `accept`: a later change of it would not be refused"
        )
    for name in _unknown(accepted, known):
        yield (
            f"`accept` names {name!r}, and the query has no store or result of that name\n  What to do: remove "
            f"{name!r} from `accept`, or correct it. Known names: {', '.join(sorted(known))}"
        )


def _columns(store: str, text: Mapping[str, str] | None) -> set[str]:
    """Return the names of the stored columns or variables of a store."""
    return set() if text is None else {name for name, *_ in schema_of_text(store, text).names_read}


def _named(names: Iterable[str], accepted: Sequence[str]) -> list[str]:
    """Return the ``names`` that are accepted. A name may have commas and spaces, which separate the names there."""
    text = _text(accepted)
    return [name for name in names if _text([name]) in text]


def _unknown(accepted: Sequence[str], known: Iterable[str]) -> list[str]:
    """Return what is left of ``accepted`` without the known names."""
    text = _text(accepted)
    for name in sorted(known, key=len, reverse=True):
        text = text.replace(_text([name]), ",")
    return [name for name in accepted if _text([name]) in text]


def _text(names: Sequence[str]) -> str:
    """Return names between commas, without spaces. Commas are doubled, so that neighbours share none."""
    return f",{',,'.join(','.join(names).replace(' ', '').split(','))},"
