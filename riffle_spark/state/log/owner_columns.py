"""Owners and standbys as JSON columns. Each member is listed once, because its name is long."""

from collections.abc import Mapping


def owners_to_json(owners: Mapping[str, object]) -> list[object]:
    """Return the owners, or lists of standbys, by task as three lists.

    These are the tasks, the distinct values, and the index of each task's value. The tasks are ``None`` if they are 0,
    1, 2 and so on.
    """
    keys = [tuple(owner) if type(owner) is list else owner for owner in owners.values()]
    indexes = {key: index for index, key in enumerate(dict.fromkeys(keys))}
    are_numbers = [*owners] == [*map(str, range(len(owners)))]
    return [None if are_numbers else [*owners], [*indexes], [indexes[key] for key in keys]]


def owners_from_json(columns: object) -> dict[str, object]:
    """Return the map that ``owners_to_json`` wrote. Raises ``TypeError`` or ``ValueError`` for other JSON."""
    if type(columns) is not list or type(columns[1]) is not list:
        raise TypeError(f"owners are {columns!r}")
    tasks, different, indexes = columns
    if any(type(index) is not int or not 0 <= index < len(different) for index in indexes):
        raise ValueError("a task has an owner that is not listed")
    names = map(str, range(len(indexes))) if tasks is None else tasks
    return dict(zip(names, [different[index] for index in indexes], strict=True))
