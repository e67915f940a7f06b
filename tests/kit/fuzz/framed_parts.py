"""Encryption frames of parts, as docs/formats.md specifies them, with a fixed salt and nonce.

They have valid tags, which a fuzzer cannot guess.
"""

from __future__ import annotations

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from riffle_spark.state.log import paths
from riffle_spark.state.objects.encryption import Keys

__all__ = ["KEYS", "PLACE", "framed", "retagged"]

_BY_ID = {"2025": bytes(range(32)), "2026": bytes(range(32, 64))}
KEYS = Keys(_BY_ID, "2026", reads_plain=False)
PLACE = paths.delta_place("totals", 5, 7, "1-" + "ab" * 16)
_ID_AT = 5
_AFTER_ID = 36
_TAG = 16
_SALT = b"0123456789abcdef"
_NONCE = b"0123456789ab"
_USES = {1: b"riffle part", 2: b"riffle part 2"}
_TEXTS = {1: PLACE.text_1, 2: PLACE.text}
_COUNTER = (2).to_bytes(4, "big")
"""The counter with which GCM encrypts the first block."""


def framed(plain: bytes, name: str = "2026", frame: int = 2) -> bytes:
    """Return the frame of a part in the frame version ``frame``, encrypted with the key ``name``."""
    check = _derived(_BY_ID[name], b"", b"riffle check")[:8]
    header = b"%s%c%s%s%s%s" % (b"RFE%d" % frame, len(name), name.encode(), check, _SALT, _NONCE)
    gcm = AESGCM(_derived(_BY_ID[name], _SALT, _USES[frame]))
    return header + gcm.encrypt(_NONCE, plain, header + _TEXTS[frame].encode())


def retagged(data: bytes) -> bytes:
    """Return an altered frame with a valid tag. If the key is unknown, return the frame unchanged."""
    after = _ID_AT + (data[_ID_AT - 1] if len(data) >= _ID_AT else 0)
    start = after + _AFTER_ID
    key = _BY_ID.get(data[_ID_AT:after].decode("ascii", "replace"))
    if key is None or len(data) < start + _TAG:
        return data
    salt = data[after + 8 : after + 24]
    nonce = data[after + 24 : start]
    frame = 1 if data.startswith(b"RFE1") else 2
    derived = _derived(key, salt, _USES[frame])
    plain = Cipher(AES(derived), CTR(nonce + _COUNTER)).decryptor().update(data[start:-_TAG])
    return data[:start] + AESGCM(derived).encrypt(nonce, plain, data[:start] + _TEXTS[frame].encode())


def _derived(key: bytes, salt: bytes, use: bytes) -> bytes:
    return HKDF(hashes.SHA256(), 32, salt, use).derive(key)
