"""Frames around parts as docs/formats.md has them, with one salt and nonce and the right tag: a fuzzer cannot guess it.
Knows the frame. Does not know what is in a part.
"""

from __future__ import annotations

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from riffle_spark.state.objects.encryption import Keys

__all__ = ["KEYS", "PLACE", "framed", "retagged"]

_BY_ID = {"2025": bytes(range(32)), "2026": bytes(range(32, 64))}
KEYS = Keys(_BY_ID, "2026", reads_plain=False)
PLACE = "delta/00000000000000000007/1-" + "ab" * 16 + "/5"
_ID_AT, _AFTER_ID, _TAG = 5, 36, 16
_SALT, _NONCE = b"0123456789abcdef", b"0123456789ab"
_COUNTER = (2).to_bytes(4, "big")
"""At which GCM begins to encrypt."""


def framed(plain: bytes, name: str = "2026") -> bytes:
    """Return the frame of a part."""
    check = _derived(_BY_ID[name], b"", b"riffle check")[:8]
    header = b"%s%c%s%s%s%s" % (b"RFE1", len(name), name.encode(), check, _SALT, _NONCE)
    gcm = AESGCM(_derived(_BY_ID[name], _SALT, b"riffle part"))
    return header + gcm.encrypt(_NONCE, plain, header + PLACE.encode())


def retagged(data: bytes) -> bytes:
    """Return a frame with the tag that fits what was altered in it, be it the header; what has no key stays."""
    after = _ID_AT + (data[_ID_AT - 1] if len(data) >= _ID_AT else 0)
    start = after + _AFTER_ID
    key = _BY_ID.get(data[_ID_AT:after].decode("ascii", "replace"))
    if key is None or len(data) < start + _TAG:
        return data
    salt, nonce = data[after + 8 : after + 24], data[after + 24 : start]
    derived = _derived(key, salt, b"riffle part")
    plain = Cipher(AES(derived), CTR(nonce + _COUNTER)).decryptor().update(data[start:-_TAG])
    return data[:start] + AESGCM(derived).encrypt(nonce, plain, data[:start] + PLACE.encode())


def _derived(key: bytes, salt: bytes, use: bytes) -> bytes:
    return HKDF(hashes.SHA256(), 32, salt, use).derive(key)
