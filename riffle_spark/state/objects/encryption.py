"""Encryption keys, and the frame around an encrypted part.

    RFE2 | length of the key's id, 1 byte | id | check, 8 | salt, 16 | nonce, 12 | ciphertext with its tag, 16

Theory of operation. Each sealing (a delta, a snapshot, a merge) draws a salt and derives a key from the user's key. So
no key encrypts as many messages as AES-GCM allows. Each part has a random nonce. The tag authenticates the header and
the part's place: kind, store, key-group, version and attempt. A part that is moved to another place does not decrypt.
Frames of version 1 (``RFE1``) are read and no longer written. They authenticate less: a delta's place has no store, and
a snapshot's has no version and no attempt. The two versions derive different keys, so neither passes for the other.

The check is derived from the user's key too. It tells a wrong key from altered bytes. Every process reads the keys from
the source that a setting names: no message holds a key. Messages name the key to write with as ``id/check``. A process
that has other bytes under this id writes nothing.
"""

import base64
import binascii
import functools
import logging
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa

from riffle_spark.errors import ConfigError, CorruptStateError, RefusedError
from riffle_spark.state.formats.part_codec import ENCRYPTED, IN_PLAIN, Data
from riffle_spark.state.objects.place import Place

__all__ = ["HEADER_BYTES_MAX", "PLAIN", "Keys", "Place", "Seal", "frame_of", "key_of", "keys_of_text", "text_of"]

_logger = logging.getLogger("riffle_spark")
PLAIN = "plain"
"""In place of a key: what is not encrypted. Where it is not listed, no such part is read."""
_KEY_BYTES, _CHECK_BYTES, _SALT_BYTES, _NONCE_BYTES, _TAG_BYTES = 32, 8, 16, 12, 16
_ID_BYTES_MAX = 64
_MAGIC_BYTES: Final = len(ENCRYPTED[0])
_NEWEST: Final = len(ENCRYPTED)
"""The frame version that is written."""
HEADER_BYTES_MAX: Final = _MAGIC_BYTES + 1 + _ID_BYTES_MAX + _CHECK_BYTES + _SALT_BYTES + _NONCE_BYTES
_PART_BYTES_MAX = 2**31 - 1 - HEADER_BYTES_MAX
_ID = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{_ID_BYTES_MAX - 1}}}\Z")
_WRAPPED = "kms:"
_VARIABLE = "env:"
_A_NAME, _A_PATH = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,39}\Z"), re.compile(r"(?!/*[A-Za-z0-9+/]{43,}\Z)/[^=\0]*\Z")
"""What may be shown of a source: in its place somebody may have written a key, in base64 or, longer, in hex."""
_WRITE = "write `id = <base64 of 32 bytes>` or `id = kms:<base64 of a wrapped key>`, one a line, the newest last"
_NAME = "name where keys are, never keys themselves: `file:/path` or `env:NAME`, on the driver and on every executor"
_OF_CHECK = b"riffle check"
_OF_PART = {1: b"riffle part", 2: b"riffle part 2"}

Seal = Callable[[bytes, Place], bytes]
"""From a part's bytes and its place to the bytes that are kept."""


class _Header(NamedTuple):
    """The bytes before a ciphertext, parsed, and their number."""

    frame: int
    key: str
    check: bytes
    salt: bytes
    nonce: bytes
    length: int


class Keys:
    """A query's keys by id. Parts are written with the key ``writes``, or in plain. Raises ``ConfigError`` if that key
    is not there, or if the library is not.
    """

    def __init__(self, keys: Mapping[str, bytes], writes: str, *, reads_plain: bool) -> None:
        if writes not in keys and not (writes == PLAIN and reads_plain):
            raise _missing(writes, "encryption_keys")
        self._keys = dict(keys)
        self._checks = {name: _derived(key, b"", _OF_CHECK)[:_CHECK_BYTES] for name, key in keys.items()}
        self._reads_plain = reads_plain
        self.writes = writes
        self.listed = frozenset({*self._checks.items(), *([(PLAIN, b"")] if reads_plain else ())})
        """What is among these keys, to tell one list from another by."""

    def __repr__(self) -> str:
        return f"Keys({', '.join(self._keys)}; {self.writes} writes)"

    def __reduce__(self) -> str:
        raise TypeError("keys go into no message: each process reads its own")

    @property
    def told(self) -> str:
        """What other processes and the log are told of the key to write with: ``id/check``, or ``PLAIN``."""
        return self.writes if self.writes == PLAIN else f"{self.writes}/{self._checks[self.writes].hex()}"

    def writing(self, told: str) -> "Keys":
        """Return these keys with the one to write with that another process has ``told``. Raises ``ConfigError`` if it
        is not there, or is another one here.
        """
        name = told.partition("/")[0]
        keys = self if name == self.writes else Keys(self._keys, name, reads_plain=self._reads_plain)
        if keys.told != told:
            raise ConfigError(
                f"key {name!r} is not the same one in this process as on the driver",
                remedy="give the driver and every executor the same keys; a new key gets a new id",
                where="encryption_keys",
                id="RIFFLE-0426",
            )
        return keys

    def sealing(self) -> Seal:
        """Return what encrypts the parts of one object. Ask anew for each."""
        if self.writes == PLAIN:
            return lambda data, _: data
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        salt, name = os.urandom(_SALT_BYTES), self.writes.encode()
        gcm = AESGCM(_derived(self._keys[self.writes], salt, _OF_PART[_NEWEST]))
        prefix = b"%s%c%s%s%s" % (ENCRYPTED[_NEWEST - 1], len(name), name, self._checks[self.writes], salt)

        def seal(data: bytes, place: Place) -> bytes:
            if len(data) > _PART_BYTES_MAX:
                problem = f"a part of {len(data)} bytes is too large to be encrypted"
                raise ConfigError(
                    problem,
                    remedy="give the query more key-groups (riffle dispatch)",
                    where=place.text,
                    id="RIFFLE-0427",
                )
            nonce = os.urandom(_NONCE_BYTES)
            header = prefix + nonce
            return header + gcm.encrypt(nonce, data, header + place.text.encode())

        return seal

    def opened(self, data: Data, place: Place, where: str) -> Data:
        """Return a part as it was before it was encrypted, or as it is if it never was.

        Raises ``RefusedError`` naming ``where`` if its key is not there or another one, or if it is in plain and that
        is not listed; ``CorruptStateError`` if it is not what was encrypted for this place.
        """
        view = memoryview(data).cast("B")
        header = _header(view)
        if header is not None:
            return pa.py_buffer(self._decrypted(view, header, place, where))
        if not self._reads_plain:
            raise RefusedError(
                f"a part of the state is not encrypted, and `encryption_keys` do not list `{PLAIN}`",
                remedy=f"list `{PLAIN}` before the keys: then such parts are read, and all new ones are encrypted. If "
                "all of them should be encrypted already, find out who wrote this one",
                where=where,
                id="RIFFLE-0428",
            )
        return data

    def _decrypted(self, view: memoryview, header: _Header, place: Place, where: str) -> bytes:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        key = self._keys.get(header.key)
        if key is None:
            raise _missing(header.key, where)
        if header.check != self._checks[header.key]:
            raise RefusedError(
                f"key {header.key!r} is not the one that the state was encrypted with",
                remedy="give the id back the key that it had; a new key gets a new id",
                where=where,
                id="RIFFLE-0429",
            )
        try:
            gcm, known = AESGCM(_derived(key, header.salt, _OF_PART[header.frame])), bytes(view[: header.length])
            text = place.text if header.frame == _NEWEST else place.text_1
            return gcm.decrypt(header.nonce, view[header.length :], known + text.encode())
        except (InvalidTag, ValueError):
            raise CorruptStateError(
                "the bytes are not what was encrypted here: they were altered, or are another part's",
                remedy="restore the object from a backup, or roll back to a version without it (riffle rollback)",
                where=where,
                id="RIFFLE-0430",
            ) from None

    def reads(self, head: bytes) -> bool:
        """Tell whether what begins with these ``HEADER_BYTES_MAX`` bytes can be opened, as far as its key goes. What is
        shorter, or begins as no part does, may be about to be written.
        """
        if len(head) < HEADER_BYTES_MAX:
            return True
        header = _header(memoryview(head))
        if header is None:
            return self._reads_plain or not head.startswith(IN_PLAIN)
        return self._checks.get(header.key) == header.check


def key_of(data: Data) -> str:
    """Return the id of a part's key, or ``PLAIN``, from its first ``HEADER_BYTES_MAX`` bytes."""
    header = _header(memoryview(data).cast("B"))
    return PLAIN if header is None else header.key


def frame_of(data: Data) -> int | None:
    """Return the version of a part's frame from the bytes that ``key_of`` reads; ``None`` if it is not encrypted."""
    header = _header(memoryview(data).cast("B"))
    return None if header is None else header.frame


def keys_of_text(text: str, where: str, unwrap: Callable[[bytes], bytes]) -> Keys:
    """Return the keys that a text lists, the one to write with last; ``unwrap`` is asked for those that are wrapped.
    ``where`` is the source that the text is from.

    Raises ``ConfigError`` for a text that is none; it repeats nothing of it: what looks like an id may be a key.
    """
    keys: dict[str, bytes] = {}
    reads_plain, newest = False, ""
    for number, line in _listed(text, by_commas=where.startswith(_VARIABLE)):
        name, is_key, value = (part.strip() for part in line.partition("="))
        newest = name if is_key else PLAIN
        if not is_key and line == PLAIN:
            reads_plain = True
            continue
        if not is_key or not _ID.match(name) or name in keys or name == PLAIN:
            raise ConfigError(
                f"line {number} of the keys has no id, or one that is taken",
                remedy=_WRITE,
                where=where,
                id="RIFFLE-0431",
            )
        keys[name] = _unpacked(value, f"the key in line {number}", where, unwrap)
    if not newest:
        raise ConfigError("there are no keys", remedy=_WRITE, where=where, id="RIFFLE-0432")
    return Keys(keys, newest, reads_plain=reads_plain)


def _listed(text: str, *, by_commas: bool) -> Iterator[tuple[int, str]]:
    """Yield what a text lists, each with the number of its line. A comment ends with its line, whatever it holds: a
    comma in one must not begin a key, or ``plain``.
    """
    for number, line in enumerate(text.split("\n"), 1):
        said = line.partition("#")[0]
        for each in said.split(",") if by_commas else [said]:
            if each.strip():
                yield number, each.strip()


def _unpacked(value: str, told: str, where: str, unwrap: Callable[[bytes], bytes]) -> bytes:
    try:
        key = base64.b64decode(value.removeprefix(_WRAPPED).strip(), validate=True)
    except (binascii.Error, ValueError):
        raise ConfigError(f"{told} is not base64", remedy=_WRITE, where=where, id="RIFFLE-0433") from None
    key = unwrap(key) if value.startswith(_WRAPPED) else key
    if len(key) != _KEY_BYTES:
        raise ConfigError(
            f"{told} has {len(key)} bytes, not {_KEY_BYTES}", remedy=_WRITE, where=where, id="RIFFLE-0434"
        )
    return key


def text_of(source: str) -> str:
    """Return what is at a source of keys. Raises ``ConfigError``, which does not repeat what may be a key."""
    kind, _, name = source.partition(":")
    if source.startswith(_VARIABLE) and name:
        found = os.environ.get(name)
        if found is None:
            shown = name if _A_NAME.match(name) else "that `encryption_keys` names"
            raise RefusedError(
                f"the variable {shown} is not set in this process",
                remedy=f"set it in the environment of the driver and of every executor; or {_NAME}",
                where="encryption_keys",
                id="RIFFLE-0435",
            )
        return found
    if kind != "file" or not name:
        raise ConfigError(
            "`encryption_keys` is no source of keys", remedy=_NAME, where="encryption_keys", id="RIFFLE-0436"
        )
    path = re.sub("^//", "", name)
    try:
        with Path(path).open(encoding="utf-8-sig") as file:  # Windows' editors begin a text with a mark
            if os.fstat(file.fileno()).st_mode & stat.S_IROTH:
                _say_who_reads(path)
            return file.read()
    except (OSError, ValueError) as error:
        shown = path if _A_PATH.match(path) else "the file that `encryption_keys` names"
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise RefusedError(
            f"the keys in {shown} cannot be read: {why}", remedy=_NAME, where="encryption_keys", id="RIFFLE-0437"
        ) from None


@functools.cache
def _say_who_reads(path: str) -> None:
    """Warn, once a process, of a file of keys that is no secret on its machine."""
    _logger.warning("[RIFFLE-0438] everybody on this machine may read the keys in %s; What to do: chmod o-r", path)


def _header(view: memoryview) -> _Header | None:
    """Return a part's header; ``None`` if it is not encrypted."""
    magic = bytes(view[:_MAGIC_BYTES])
    if magic not in ENCRYPTED:
        return None
    start = _MAGIC_BYTES + 1
    at = [start, start + (view[start - 1] if len(view) >= start else 0)]
    for size in (_CHECK_BYTES, _SALT_BYTES, _NONCE_BYTES):
        at.append(at[-1] + size)
    key, check, salt, nonce = (bytes(view[one:end]) for one, end in pairwise(at))
    return _Header(ENCRYPTED.index(magic) + 1, key.decode("ascii", "replace"), check, salt, nonce, at[-1])


def _derived(key: bytes, salt: bytes, use: bytes) -> bytes:
    """Return a key for one use (HKDF-SHA256)."""
    try:
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF
    except ImportError as error:
        raise ConfigError(
            "`encryption_keys` are set, and the library `cryptography` is not installed",
            remedy="pip install 'cryptography>=42' in the Python of the driver and of every executor",
            where="encryption_keys",
            id="RIFFLE-0439",
        ) from error
    return HKDF(hashes.SHA256(), _KEY_BYTES, salt, use).derive(key)


def _missing(name: str, where: str) -> RefusedError:
    return RefusedError(
        f"key {name!r} is needed and not among `encryption_keys` in this process",
        remedy="add it, with its id, to what `encryption_keys` names, on the driver and on every executor",
        where=where,
        id="RIFFLE-0440",
    )
