"""What ``./run fuzz`` takes for harm, and what a guided fuzzer gives to decoders. Needs no fuzzer."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from random import Random
from threading import Event

import pytest

from riffle_spark.errors import ConfigError, RiffleError
from riffle_spark.state.formats import part_codec
from tests.kit.folders import CHECKOUT
from tests.kit.fuzz import __main__ as fuzz
from tests.kit.fuzz.decoders import DECODERS, Decoder, forget_scratch
from tests.kit.fuzz.mutations import varied
from tests.kit.fuzz.readers import READERS, READS


def harmful(data: bytes) -> None:
    """Refuse what is even; do harm to 3, 5, 7 and 9."""
    if int(data) % 2 == 0:
        raise ConfigError("even", remedy="none", where="here")
    if data == b"3":
        raise KeyError("three")
    if data == b"5":
        os._exit(9)
    while data == b"7":
        pass
    if data == b"9":
        Event().wait()


def digits(judge: fuzz.Judge, _: fuzz.Seeds) -> None:
    """Give a judge the numbers of its inputs."""
    for number in judge.numbers:
        judge(b"%d" % number)


def test_each_harm_is_found_and_kept_and_what_is_refused_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that is not ours, the end of the process, an input without end, and one that waits; others go on."""
    monkeypatch.setattr(fuzz, "HANG_SECONDS", 0.2)
    monkeypatch.setattr(fuzz, "BLOCKED_SECONDS", 1.5)
    outcome = fuzz.fuzzed(Decoder("digits", harmful, list), {"digits": []}, 15, 1, digits)
    assert outcome.kept == [b"3", b"5", b"7", b"9"]
    assert [told.partition(": ")[2][:18] for told in outcome.findings] == [
        "KeyError at ?: \"'t", "ended its process:", "hung for 0.2 s", "blocked for 1.5 s,",
    ]  # fmt: skip
    assert (outcome.inputs, outcome.refused) == (15, 3)  # 10, 12 and 14: a child that dies takes its count along


REPLAYED = {
    "1": (0, "digits: read"), "2": (0, "digits: refused with an error of ours, ConfigError: even [here]"),
    "3": (1, "KeyError: 'three'"), "5": (1, "a finding: digits, input 0 of seed 0: ended its process: status 9"),
    "7": (1, "hung for 0.2 s"), "9": (1, "blocked for 1.5 s"),
}  # fmt: skip


@pytest.mark.parametrize("said", REPLAYED)
def test_a_replayed_input_ends_with_1_if_it_is_a_finding(
    said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is read, or refused with an error of ours, ends with 0; each says so, and an error is shown whole."""
    monkeypatch.setattr(fuzz, "DECODERS", {"digits": Decoder("digits", harmful, list)})
    monkeypatch.setattr(fuzz, "HANG_SECONDS", 0.2)
    monkeypatch.setattr(fuzz, "BLOCKED_SECONDS", 1.5)
    (tmp_path / "kept").write_text(said)
    status = fuzz.main(["--decoder", "digits", "--replay", str(tmp_path / "kept")])
    assert status == REPLAYED[said][0]
    assert REPLAYED[said][1] in capsys.readouterr().out


CHECKSUMS = {
    "record": r'"xxh3": ?"', "encrypted part": r"(?=.{16}\Z)", "stack": "^", "packed scenario": r"(?=.{8}$)",
}  # fmt: skip
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


def test_every_file_that_reads_from_elsewhere_has_a_decoder_or_a_reason() -> None:
    """Whoever adds one comes by here; nobody adds a decoder of nothing."""
    package = CHECKOUT / "riffle_spark"
    found = {
        str(path.relative_to(package).with_suffix(""))
        for path in package.rglob("*.py")
        if READS.search(path.read_text())
    }
    assert found == set(READERS)
    named = {name for told in READERS.values() if not isinstance(told, str) for name in told}
    assert named | {"names", "answer of S3"} == set(DECODERS)


def test_values_that_do_not_come_back_are_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With ``--values`` generated columns are sealed and read. Validation that looks at text fails on some of them."""
    assert fuzz.main(["--values", "--inputs", "60", "--seed", "3", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["examples"], told["findings"]) == (60, [])
    monkeypatch.setattr(part_codec, "check_buffers", lambda table: table.validate(full=True))
    assert fuzz.main(["--values", "--inputs", "60", "--seed", "3"]) == 1
    assert "CorruptStateError" in capsys.readouterr().out


def test_a_run_that_would_try_nothing_is_refused() -> None:
    """A number that was mistyped does not pass for ever."""
    with pytest.raises(SystemExit) as caught:
        fuzz.main(["--inputs", "0"])
    assert caught.value.code == 2
