"""State that is encrypted, in some schedules: the key, and salts and nonces that are the same whenever a history is
played.
"""

from __future__ import annotations

import base64
import os
import random
from typing import Any

import pytest

from riffle_spark.state.objects import encryption

__all__ = ["Encrypted"]

_SHARE = 0.15
_VARIABLE = "KEYS_OF_DST"


class Encrypted:
    """Whether a schedule's state is encrypted, as ``settings``."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(f"{seed}/salts")
        is_one = self._chance.random() < _SHARE
        self.settings = {"encryption_keys": f"env:{_VARIABLE}"} if is_one else {}
        os.environ[_VARIABLE] = f"a = {base64.b64encode(bytes(range(32))).decode()}"

    def plant(self, patch: pytest.MonkeyPatch) -> None:
        """Have what is drawn for each sealing follow from the seed: it is part of checksums, and these of records."""
        patch.setattr(encryption, "os", _DrawnBytes(self._chance))


class _DrawnBytes:
    """Replaces ``os`` as the source of random bytes."""

    def __init__(self, chance: random.Random) -> None:
        self.urandom = chance.randbytes

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)
