"""Names of objects below a root. Knows the layout. Does not know any store, or what the objects hold.

    log/<sequence>                                      the log: batch | claim | rollback | adopt | dispatch | orders
    delta/<version>/<epoch>-<attempt>                   what one attempt of one slot changed
    <store>/key_group=<0042>/snapshot/<snapshot id>     one key-group's whole state

Numbers are zero-padded to 20 digits (key-groups to at least 4), so that names sort as their numbers do.
"""

import re
from typing import NamedTuple

from riffle_spark.errors import ConfigError, CorruptStateError
from riffle_spark.state.objects.place import Place

__all__ = [
    "FAR", "LOG", "ObjectName", "base", "check_store_name", "delta", "delta_place", "far_beyond",
    "merged_place", "no_log", "output_place", "parse", "record", "record_sequence", "snapshot", "snapshot_id",
    "snapshot_place",
]  # fmt: skip

LOG = "log/"
FAR = 10_000
"""So many records further on there is none of the same log."""
_DIGITS = 20
_STORE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
_RESERVED = frozenset({"log", "delta"})
_DELTA = re.compile(r"delta/(\d{20})/((\d+)-[0-9a-f]{32})\Z")
_SNAPSHOT = re.compile(r"([^/]+)/key_group=(\d{4,})/snapshot/((\d{20})-(\d+)-[0-9a-f]{32})\Z")


def check_store_name(name: str) -> str:
    """Return ``name`` if it can be part of object and folder names, else raise ``ConfigError``."""
    if not isinstance(name, str) or not _STORE_NAME.match(name) or ".." in name or name in _RESERVED:
        raise ConfigError(
            f"{name!r} cannot be a store name",
            remedy="use 1 to 64 letters, digits, '.', '_' or '-', beginning with a letter or digit, without '..'; "
            "'log' and 'delta' are taken",
            where="store",
            id="RIFFLE-0410",
        )
    return name


def no_log(root: str, strange: str | None) -> ConfigError:
    """Return the refusal of a root that holds objects and no log, or something strange among the log's records."""
    if strange is None:
        remedy = "set `root` to an empty folder or prefix, or to one that riffle wrote"
        return ConfigError(f"{root} holds objects, but not a riffle log", remedy=remedy, where=root, id="RIFFLE-0411")
    shown = strange if strange.isprintable() else ascii(strange)
    remedy = "move it elsewhere: one root is one query's alone"
    return ConfigError(
        f"in the log of {root} lies an object that is none of riffle's", remedy=remedy, where=shown, id="RIFFLE-0412"
    )


def far_beyond(sequence: int) -> CorruptStateError:
    """Return the refusal of what has the name of a record that the log never came to."""
    remedy = "move it elsewhere, and look with riffle verify; or restore the log's objects from one backup"
    return CorruptStateError(
        "a record lies far beyond all others", remedy=remedy, where=record(sequence), id="RIFFLE-0413"
    )


def record(sequence: int) -> str:
    """Return the name of the log's record ``sequence``."""
    return f"{LOG}{sequence:0{_DIGITS}d}"


def record_sequence(name: str) -> int | None:
    """Return the sequence of a record's name, or ``None`` if the name is not one of a record."""
    digits = name.removeprefix(LOG)
    return int(digits) if len(digits) == _DIGITS and digits.isascii() and digits.isdigit() else None


def delta(version: int, attempt: str) -> str:
    """Return the name of the delta that attempt ``<epoch>-<attempt id>`` sealed in ``version``."""
    return f"delta/{version:0{_DIGITS}d}/{attempt}"


def snapshot(store: str, key_group: int, snapshot_id: str) -> str:
    """Return the name of a snapshot; its id is ``<version>-<epoch>-<attempt id>``."""
    return f"{base(store, key_group)}/snapshot/{snapshot_id}"


def base(store: str, key_group: int) -> str:
    """Return the prefix of a key-group's snapshots."""
    return f"{store}/key_group={key_group:04d}"


def delta_place(store: str, key_group: int, version: int, attempt: str) -> Place:
    """Return the place of a key-group's part in a delta."""
    return Place(f"delta/{store}/{key_group}/{version}/{attempt}", f"{delta(version, attempt)}/{key_group}")


def output_place(store: str, version: int, attempt: str) -> Place:
    """Return the place of a store's output rows in a delta."""
    return Place(f"output/{store}/{version}/{attempt}", f"{delta(version, attempt)}/output")


def snapshot_place(store: str, key_group: int, snapshot_id: str) -> Place:
    """Return the place of a snapshot. Its id names the version and the attempt."""
    return Place(f"snapshot/{store}/{key_group}/{snapshot_id}", base(store, key_group))


def merged_place(store: str, key_group: int, unique: str) -> Place:
    """Return the place of a part that a member merged, in a local file with this unique name."""
    return Place(f"merged/{store}/{key_group}/{unique}", base(store, key_group))


def snapshot_id(version: int, attempt: str) -> str:
    """Return the id of the snapshot that attempt ``<epoch>-<attempt id>`` took of ``version``: 0 in the place of -1, as
    state is of that was taken over and not run on yet.
    """
    return f"{max(version, 0):0{_DIGITS}d}-{attempt}"


class ObjectName(NamedTuple):
    """What the name of a delta or snapshot says about it."""

    kind: str
    version: int
    epoch: int


def parse(name: str) -> ObjectName | None:
    """Return what a name says, or ``None`` if it is neither a delta's nor a snapshot's."""
    found = _DELTA.match(name)
    if found:
        return ObjectName("delta", int(found[1]), int(found[3]))
    found = _SNAPSHOT.match(name)
    return ObjectName("snapshot", int(found[4]), int(found[5])) if found else None
