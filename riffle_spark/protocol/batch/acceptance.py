"""Warn of names in the setting ``accept`` that a start of the query does not need.

``accept`` is meant for one restart. A name that stays in the configuration would silence a later refusal.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from riffle_spark.protocol.input_columns import is_same_name
from riffle_spark.protocol.operator import Operator
from riffle_spark.state.log.record import Record
from riffle_spark.state.schemas.store_schema import read_meanings, read_operator_meanings, schema_of_text


def acceptance_warnings(tail: Record | None, operators: Sequence[Operator], accepted: Sequence[str]) -> Iterator[str]:
    """Yield a warning per name in ``accepted`` without effect, and per accepted result with a changed meaning.

    ``tail`` is the newest record before the start, ``None`` if the root is empty. The report of the first batch warns
    of stores that continue without rows, so they cause no warning here.
    """
    if not accepted:
        return
    needed_names: set[str] = set()
    if tail is not None:
        needed_names = {*tail.stale_stores, *(tail.schemas.keys() ^ {operator.store for operator in operators})}
    for operator in operators:
        schema_text = tail.schemas.get(operator.store) if tail is not None else None
        if schema_text is None:
            continue
        stored = {**read_meanings(schema_text), **read_operator_meanings(schema_text)}
        declared = {**(operator.meanings or {}), **operator.result_meanings}
        changed_names = _changed_names(stored, declared, case_sensitive=operator.case_sensitive)
        columns = {name for name, *_ in schema_of_text(operator.store, schema_text).column_and_field_names}
        unchanged_names = (stored.keys() & declared.keys()) - changed_names
        needed_names |= ((stored.keys() ^ declared.keys()) | changed_names | columns) - unchanged_names
        for name in sorted(name for name in changed_names if is_accepted(name, accepted)):
            yield (
                f"[RIFFLE-0800] Store {operator.store!r} continues with {stored[name]} under {name!r}, although the "
                f"job now declares {declared[name]}.\n  What to do: Remove {name!r} from `accept`."
            )
    for name in _unneeded_names(accepted, needed_names):
        yield (
            f"[RIFFLE-0801] `accept` names {name!r}, which this start does not need.\n"
            f"  What to do: Remove {name!r} from `accept`, so that a later change is refused."
        )


def _changed_names(stored: Mapping[str, str], declared: Mapping[str, str], *, case_sensitive: bool) -> set[str]:
    """Return the names that both mappings have, but with another meaning."""
    return {
        name
        for name in stored.keys() & declared.keys()
        if not is_same_name(stored[name], declared[name], case_sensitive=case_sensitive)
    }


def is_accepted(name: str, accepted: Sequence[str]) -> bool:
    """Return whether ``accepted`` has the name. It was split at the commas that a name may contain."""
    return _join_with_commas([name]) in _join_with_commas(accepted)


def _unneeded_names(accepted: Sequence[str], needed_names: Iterable[str]) -> list[str]:
    """Return the names in ``accepted`` that are not among ``needed_names``."""
    accepted_text = _join_with_commas(accepted)
    for name in sorted(needed_names, key=len, reverse=True):
        accepted_text = accepted_text.replace(_join_with_commas([name]), ",")
    return [name for name in accepted if _join_with_commas([name]) in accepted_text]


def _join_with_commas(names: Sequence[str]) -> str:
    """Return the names as one text with commas around each. Commas are doubled, so that neighbours share none."""
    return f",{',,'.join(','.join(names).replace(' ', '').split(','))},"
