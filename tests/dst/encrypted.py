"""Encrypt the state of some schedules. The key, salts and nonces are the same in each replay of a history."""

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
    """Whether the state of a schedule is encrypted, as ``settings``."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(f"{seed}/salts")
        is_one = self._chance.random() < _SHARE
        self.settings = {"encryption_keys": f"env:{_VARIABLE}"} if is_one else {}
        os.environ[_VARIABLE] = f"a = {base64.b64encode(bytes(range(32))).decode()}"

    def plant(self, patch: pytest.MonkeyPatch) -> None:
        """Draw salts and nonces from the seed, because they are part of checksums, which are part of records."""
        patch.setattr(encryption, "os", _DrawnBytes(self._chance))


class _DrawnBytes:
    """Replaces ``os`` as the source of random bytes."""

    def __init__(self, chance: random.Random) -> None:
        self.urandom = chance.randbytes

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)
