"""What ``./run fuzz`` takes for harm, and what a guided fuzzer gives to decoders. Needs no fuzzer."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from random import Random

import pytest

from riffle_spark.errors import ConfigError, RiffleError
from tests.kit.fuzz import __main__ as fuzz
from tests.kit.fuzz.decoders import DECODERS, Decoder, forget_scratch
from tests.kit.fuzz.mutations import varied


def harmful(data: bytes) -> None:
    """Refuse what is even; do harm to 3, 5 and 7."""
    if int(data) % 2 == 0:
        raise ConfigError("even", remedy="none", where="here")
    if data == b"3":
        raise KeyError("three")
    if data == b"5":
        os._exit(9)
    while data == b"7":
        pass


def digits(judge: fuzz.Judge, _: fuzz.Seeds) -> None:
    """Give a judge the numbers of its inputs."""
    for number in judge.numbers:
        judge(b"%d" % number)


def test_each_harm_is_found_and_kept_and_what_is_refused_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that is not ours, the end of the process, and an input that takes no end; the others go on."""
    monkeypatch.setattr(fuzz, "HANG_SECONDS", 0.2)
    outcome = fuzz.fuzzed(Decoder("digits", harmful, list), {"digits": []}, 13, 1, digits)
    assert outcome.kept == [b"3", b"5", b"7"]
    assert [told.partition(": ")[2][:18] for told in outcome.findings] == [
        "KeyError at ?: \"'t", "ended its process:", "hung for 0.2 s",
    ]  # fmt: skip
    assert (outcome.inputs, outcome.refused) == (13, 3)  # 8, 10 and 12: a child that dies takes its count along


CHECKSUMS = {"record": r'"xxh3": ?"', "stack": "^", "packed scenario": r"(?=.{8}$)"}
"""Where each has one: after this."""


@pytest.mark.parametrize("name", CHECKSUMS)
def test_a_sealed_encoding_is_believed(name: str) -> None:
    """A real encoding whose checksum is made wrong, and then sealed, is read as what it was."""
    decoder = DECODERS[name]
    for data in decoder.seeds():
        found = re.search(CHECKSUMS[name].encode(), data, re.DOTALL)
        assert found is not None
        wrong = data[: found.end()] + (b"1" if data[found.end()] == ord("0") else b"0") + data[found.end() + 1 :]
        assert read(decoder, wrong) != read(decoder, data)
        assert read(decoder, decoder.sealed(wrong)) == read(decoder, data)
    forget_scratch()


def read(decoder: Decoder, data: bytes) -> object:
    """Return what a decoder makes of it, or its refusal."""
    try:
        return decoder.decode(data)
    except RiffleError as refused:
        return str(refused)


@pytest.mark.parametrize("name", CHECKSUMS)
def test_a_guided_fuzzers_inputs_pass_the_checksum_mostly(name: str) -> None:
    """Of inputs that change what it covers most are sealed, some are not, and chance alone decides."""
    decoder = DECODERS[name]
    own = decoder.seeds()[:2]
    sealed = [made(decoder, own, number, decoder.sealed) for number in range(300)]
    assert sealed == [made(decoder, own, number, decoder.sealed) for number in range(300)]
    bare = [made(decoder, own, number, bytes) for number in range(300)]
    changed = sum(left != right for left, right in zip(sealed, bare, strict=True))
    assert 60 < changed < 280


def made(decoder: Decoder, own: list[bytes], number: int, sealed: Callable[[bytes], bytes]) -> bytes:
    """Return what comes of an input by so many chances, with bits flipped at its end."""
    return varied(Random(number), own[0], (own, own), lambda data: data[:-9] + b"\0" + data[-8:], sealed)


def test_a_run_that_would_try_nothing_is_refused() -> None:
    """A number that was mistyped does not pass for ever."""
    with pytest.raises(SystemExit) as caught:
        fuzz.main(["--inputs", "0"])
    assert caught.value.code == 2
