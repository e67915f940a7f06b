"""Encryption keys, and the frame around an encrypted part.

    RFE2 | length of the key id, 1 byte | key id | check, 8 | salt, 16 | nonce, 12 | ciphertext with its tag, 16

Theory of operation.

1. Each object (a delta, a snapshot, a merged part) draws a salt and derives its own key from the user's key. So no key
   encrypts more messages than AES-GCM allows. Each part has a random nonce.
2. The tag authenticates the header and the part's place: kind, store, key-group, version and attempt. A part that is
   moved to another place does not decrypt.
3. Frames of version 1 (``RFE1``) are read and no longer written. They authenticate less: the place of a delta has no
   store, and that of a snapshot no version and no attempt. The two versions derive different keys, so a frame of one
   version does not decrypt as the other.
4. The check is derived from the user's key too. It distinguishes a wrong key from altered bytes.
5. Every process reads the keys from the source that ``encryption_keys`` names. No message contains a key. Messages name
   the key to write with as ``id/check``. A process that has another key under this id refuses to write.
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

__all__ = [
    "HEADER_BYTES_MAX",
    "PLAIN",
    "Encrypt",
    "Keys",
    "Place",
    "frame_version",
    "key_id_of",
    "parse_keys",
    "read_key_source",
]

_logger = logging.getLogger("riffle_spark")
PLAIN = "plain"
"""The entry of a key list that allows unencrypted parts to be read."""
_KEY_BYTES: Final = 32
_CHECK_BYTES: Final = 8
_SALT_BYTES: Final = 16
_NONCE_BYTES: Final = 12
_ID_BYTES_MAX = 64
_MAGIC_BYTES: Final = len(ENCRYPTED[0])
_NEWEST: Final = len(ENCRYPTED)
"""The frame version that is written."""
HEADER_BYTES_MAX: Final = _MAGIC_BYTES + 1 + _ID_BYTES_MAX + _CHECK_BYTES + _SALT_BYTES + _NONCE_BYTES
_PART_BYTES_MAX = 2**31 - 1 - HEADER_BYTES_MAX
_ID = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{_ID_BYTES_MAX - 1}}}\Z")
_WRAPPED = "kms:"
_VARIABLE = "env:"
_SHOWN_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,39}\Z")
_SHOWN_PATH: Final = re.compile(r"(?!/*[A-Za-z0-9+/]{43,}\Z)/[^=\0]*\Z")
"""Names and paths that errors may repeat. Others may be a key that was set in place of its source."""
_WRITE = "Write one `id = <base64 of 32 bytes>` or `id = kms:<base64 of a wrapped key>` per line, the newest last."
_NAME = "Set `encryption_keys` to `file:/path` or `env:NAME`, which must exist on the driver and on every executor."
_CHECK_INFO: Final = b"riffle check"
_PART_INFO: Final = {1: b"riffle part", 2: b"riffle part 2"}

Encrypt = Callable[[bytes, Place], bytes]
"""Encrypts a part's bytes for its place."""


class _Header(NamedTuple):
    """The parsed bytes before a ciphertext, and their number."""

    frame: int
    key: str
    check: bytes
    salt: bytes
    nonce: bytes
    length: int


class Keys:
    """A query's keys by id. ``writes`` is the id of the key that encrypts new parts, or ``PLAIN``.

    Raises ``ConfigError`` if that key or the library ``cryptography`` is missing.
    """

    def __init__(self, keys: Mapping[str, bytes], writes: str, *, reads_plain: bool) -> None:
        """Copy the ``keys`` and compute their checks. ``reads_plain`` allows parts that are not encrypted."""
        if writes not in keys and not (writes == PLAIN and reads_plain):
            raise _missing(writes, "encryption_keys")
        self._keys = dict(keys)
        self._checks = {name: _derived(key, b"", _CHECK_INFO)[:_CHECK_BYTES] for name, key in keys.items()}
        self._reads_plain = reads_plain
        self.writes = writes
        self.fingerprint = frozenset({*self._checks.items(), *([(PLAIN, b"")] if reads_plain else ())})
        """Equal for equal lists of keys."""

    def __repr__(self) -> str:
        return f"Keys({', '.join(self._keys)}; {self.writes} writes)"

    def __reduce__(self) -> str:
        raise TypeError("Keys are never pickled: each process reads them itself.")

    @property
    def write_key(self) -> str:
        """The name of the key to write with, for other processes and the log: ``id/check``, or ``PLAIN``."""
        return self.writes if self.writes == PLAIN else f"{self.writes}/{self._checks[self.writes].hex()}"

    def with_write_key(self, write_key: str) -> "Keys":
        """Return these keys with the driver's key to write with. Raises ``ConfigError`` if it is missing or differs."""
        name = write_key.partition("/")[0]
        keys = self if name == self.writes else Keys(self._keys, name, reads_plain=self._reads_plain)
        if keys.write_key != write_key:
            # Cause: A process reads an older list of keys, or a new key got the id of a former one.
            raise ConfigError(
                f"Key {name!r} differs between this process and the driver.",
                remedy="Give the driver and every executor the same keys. Give a new key a new id.",
                where="encryption_keys",
                id="RIFFLE-0426",
            )
        return keys

    def new_encryption(self) -> Encrypt:
        """Return a function that encrypts the parts of one object. Each object needs its own function."""
        if self.writes == PLAIN:
            return lambda data, _: data
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        salt = os.urandom(_SALT_BYTES)
        name = self.writes.encode()
        gcm = AESGCM(_derived(self._keys[self.writes], salt, _PART_INFO[_NEWEST]))
        prefix = b"%s%c%s%s%s" % (ENCRYPTED[_NEWEST - 1], len(name), name, self._checks[self.writes], salt)

        def encrypt(data: bytes, place: Place) -> bytes:
            size = len(data)
            if size > _PART_BYTES_MAX:
                raise ConfigError(
                    f"A part of {size} bytes is too large to be encrypted.",
                    remedy="Give the query more key-groups (riffle dispatch).",
                    where=place.text,
                    id="RIFFLE-0427",
                )
            nonce = os.urandom(_NONCE_BYTES)
            header = prefix + nonce
            return header + gcm.encrypt(nonce, data, header + place.text.encode())

        return encrypt

    def decrypt(self, data: Data, place: Place, where: str) -> Data:
        """Return a part's decrypted bytes, or the same bytes if it is not encrypted.

        Raises ``RefusedError`` if its key is missing or differs, or if the part is not encrypted and ``PLAIN`` is not
        listed. Raises ``CorruptStateError`` if the bytes were not encrypted for this place. Errors name ``where``.
        """
        view = memoryview(data).cast("B")
        header = _header(view)
        if header is not None:
            return pa.py_buffer(self._decrypted(view, header, place, where))
        if not self._reads_plain:
            raise RefusedError(
                f"A part of the state is not encrypted, but `encryption_keys` does not include `{PLAIN}`.",
                remedy=f"List `{PLAIN}` before the keys to read such parts and encrypt new ones. If all parts should "
                "be encrypted, find out what wrote this one.",
                where=where,
                id="RIFFLE-0428",
            )
        return data

    def _decrypted(self, view: memoryview, header: _Header, place: Place, where: str) -> bytes:
        """Return the Arrow stream of an encrypted part with this ``header``.

        ``place`` is the claimed place of the part, and is authenticated. ``where`` is the place for errors. Raises
        ``RefusedError`` for a missing or wrong key, ``CorruptStateError`` for altered bytes or another place.
        """
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        key = self._keys.get(header.key)
        if key is None:
            raise _missing(header.key, where)
        if header.check != self._checks[header.key]:
            # Cause: A new key got this id after the state was written.
            raise RefusedError(
                f"Key {header.key!r} is not the key that encrypted the state.",
                remedy="Restore the key that this id had. Give a new key a new id.",
                where=where,
                id="RIFFLE-0429",
            )
        try:
            gcm = AESGCM(_derived(key, header.salt, _PART_INFO[header.frame]))
            text = place.text if header.frame == _NEWEST else place.text_1
            authenticated = bytes(view[: header.length]) + text.encode()
            return gcm.decrypt(header.nonce, view[header.length :], authenticated)
        except (InvalidTag, ValueError):
            raise CorruptStateError(
                "The encrypted bytes of a part were altered, or belong to another part.",
                remedy="Restore the object from a backup, or roll back to a version without it (riffle rollback).",
                where=where,
                id="RIFFLE-0430",
            ) from None

    def can_decrypt(self, start: bytes) -> bool:
        """Return whether these keys can read a file that starts with these ``HEADER_BYTES_MAX`` bytes.

        Shorter files, and files that do not start like a part, may be unfinished and count as readable.
        """
        if len(start) < HEADER_BYTES_MAX:
            return True
        header = _header(memoryview(start))
        if header is None:
            return self._reads_plain or not start.startswith(IN_PLAIN)
        return self._checks.get(header.key) == header.check


def key_id_of(data: Data) -> str:
    """Return the id of a part's key, or ``PLAIN``. The first ``HEADER_BYTES_MAX`` bytes are enough."""
    header = _header(memoryview(data).cast("B"))
    return PLAIN if header is None else header.key


def frame_version(data: Data) -> int | None:
    """Return the version of a part's frame, or ``None`` if it is not encrypted.

    The first ``HEADER_BYTES_MAX`` bytes are enough.
    """
    header = _header(memoryview(data).cast("B"))
    return None if header is None else header.frame


def parse_keys(text: str, where: str, unwrap: Callable[[bytes], bytes]) -> Keys:
    """Return the keys that a text lists, with the key to write with last. ``unwrap`` decrypts wrapped keys.

    ``where`` is the source of the text. Raises ``ConfigError`` for an invalid text. The error repeats nothing of the
    text, because an apparent id may be a key.
    """
    keys: dict[str, bytes] = {}
    reads_plain = False
    newest = ""
    for number, line in _entries(text, by_commas=where.startswith(_VARIABLE)):
        name, is_key, value = (part.strip() for part in line.partition("="))
        newest = name if is_key else PLAIN
        if not is_key and line == PLAIN:
            reads_plain = True
            continue
        if not is_key or not _ID.match(name) or name in keys or name == PLAIN:
            raise ConfigError(
                f"Line {number} of the keys has no valid id, or repeats one.",
                remedy=_WRITE,
                where=where,
                id="RIFFLE-0431",
            )
        keys[name] = _parse_key(value, number, where, unwrap)
    if not newest:
        raise ConfigError("The list of encryption keys is empty.", remedy=_WRITE, where=where, id="RIFFLE-0432")
    return Keys(keys, newest, reads_plain=reads_plain)


def _entries(text: str, *, by_commas: bool) -> Iterator[tuple[int, str]]:
    """Yield the entries of a text with their line numbers. A comma in a comment does not start an entry."""
    for number, line in enumerate(text.split("\n"), 1):
        content = line.partition("#")[0]
        for entry in content.split(",") if by_commas else [content]:
            if entry.strip():
                yield number, entry.strip()


def _parse_key(value: str, number: int, where: str, unwrap: Callable[[bytes], bytes]) -> bytes:
    """Return the 32 bytes of a key from its text in line ``number``: base64, or ``kms:`` and a key that ``unwrap``
    unwraps.

    Raises ``ConfigError`` for any other text. It does not quote the text.
    """
    try:
        key = base64.b64decode(value.removeprefix(_WRAPPED).strip(), validate=True)
    except (binascii.Error, ValueError):
        raise ConfigError(
            f"The key in line {number} is not base64.", remedy=_WRITE, where=where, id="RIFFLE-0433"
        ) from None
    key = unwrap(key) if value.startswith(_WRAPPED) else key
    size = len(key)
    if size != _KEY_BYTES:
        raise ConfigError(
            f"The key in line {number} has {size} bytes, not {_KEY_BYTES}.",
            remedy=_WRITE,
            where=where,
            id="RIFFLE-0434",
        )
    return key


def read_key_source(source: str) -> str:
    """Return the text of a source of keys. Raises ``ConfigError``. It does not repeat text that may be a key."""
    kind, _, name = source.partition(":")
    if source.startswith(_VARIABLE) and name:
        text = os.environ.get(name)
        if text is None:
            shown = name if _SHOWN_NAME.match(name) else "that `encryption_keys` names"
            raise RefusedError(
                f"The environment variable {shown} is not set in this process.",
                remedy="Set it in the environment of the driver and of every executor.",
                where="encryption_keys",
                id="RIFFLE-0435",
            )
        return text
    if kind != "file" or not name:
        raise ConfigError(
            "`encryption_keys` does not name a source of keys.",
            remedy=_NAME,
            where="encryption_keys",
            id="RIFFLE-0436",
        )
    path = re.sub("^//", "", name)
    try:
        with Path(path).open(encoding="utf-8-sig") as file:  # editors on Windows write a byte order mark
            if os.fstat(file.fileno()).st_mode & stat.S_IROTH:
                _warn_of_readers(path)
            return file.read()
    except (OSError, ValueError) as error:
        shown = path if _SHOWN_PATH.match(path) else "the file that `encryption_keys` names"
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise RefusedError(
            f"Cannot read the keys in {shown}: {reason}", remedy=_NAME, where="encryption_keys", id="RIFFLE-0437"
        ) from None


@functools.cache
def _warn_of_readers(path: str) -> None:
    """Warn once per process that other users can read a file of keys."""
    _logger.warning(
        "[RIFFLE-0438] Every user of this machine can read the keys in %s.\n  What to do: Run chmod o-r on this file.",
        path,
    )


def _header(view: memoryview) -> _Header | None:
    """Return a part's header; ``None`` if it is not encrypted."""
    magic = bytes(view[:_MAGIC_BYTES])
    if magic not in ENCRYPTED:
        return None
    start = _MAGIC_BYTES + 1
    edges = [start, start + (view[start - 1] if len(view) >= start else 0)]
    for size in (_CHECK_BYTES, _SALT_BYTES, _NONCE_BYTES):
        edges.append(edges[-1] + size)
    key, check, salt, nonce = (bytes(view[begin:end]) for begin, end in pairwise(edges))
    return _Header(ENCRYPTED.index(magic) + 1, key.decode("ascii", "replace"), check, salt, nonce, edges[-1])


def _derived(key: bytes, salt: bytes, use: bytes) -> bytes:
    """Derive a key for one use (HKDF-SHA256)."""
    try:
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF
    except ImportError as error:
        raise ConfigError(
            "`encryption_keys` is set, but the library `cryptography` is not installed.",
            remedy="Run pip install 'cryptography>=42' for the Python of the driver and of every executor.",
            where="encryption_keys",
            id="RIFFLE-0439",
        ) from error
    return HKDF(hashes.SHA256(), _KEY_BYTES, salt, use).derive(key)


def _missing(name: str, where: str) -> RefusedError:
    """Return the error for a key that this process needs and does not have."""
    # Cause: The list of this process is older than the driver's, or a key was removed that state still needs.
    return RefusedError(
        f"Key {name!r} is needed but missing from `encryption_keys` in this process.",
        remedy="Add it, with its id, to the source that `encryption_keys` names, on the driver and every executor. "
        "Then restart the query.",
        where=where,
        id="RIFFLE-0440",
    )
