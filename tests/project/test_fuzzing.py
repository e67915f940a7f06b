"""``./run fuzz`` reports each fault of a decoder, and has a decoder for every file that reads external data."""

from __future__ import annotations

import json
import os
import re

import pytest

from riffle_spark.errors import ConfigError, RiffleError
from riffle_spark.state.formats import part_codec
from tests.kit.folders import CHECKOUT
from tests.kit.fuzz import __main__ as fuzz
from tests.kit.fuzz.decoders import DECODERS, Decoder, forget_scratch
from tests.kit.fuzz.readers import READERS, READS


def decode_digit(data: bytes) -> None:
    """Refuse even numbers. For 3, 5 and 7 raise a foreign error, exit, or never return."""
    if int(data) % 2 == 0:
        raise ConfigError("even", remedy="none", where="here")
    if data == b"3":
        raise KeyError("three")
    if data == b"5":
        os._exit(9)
    while data == b"7":
        pass


def feed_numbers(judge: fuzz.InputRunner, _: fuzz.Seeds) -> None:
    """Feed the given numbers to the decoder."""
    for number in judge.numbers:
        judge(b"%d" % number)


def test_each_fault_of_a_decoder_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A foreign error, the end of the process and a hang are findings. The other inputs are still tried."""
    monkeypatch.setattr(fuzz, "HANG_SECONDS", 1.0)  # seconds of CPU, so the load of the machine does not matter
    decoder = Decoder("digits", decode_digit, list)
    outcome = fuzz.fuzzed(decoder, {"digits": []}, 12, 1, feed_numbers)
    assert outcome.kept_inputs == [b"3", b"5", b"7"]
    assert ["KeyError" in outcome.findings[0], "ended its process" in outcome.findings[1]] == [True, True]
    assert "hung for 1 s" in outcome.findings[2]
    assert outcome.inputs == 12


CHECKSUMS = {
    "record": r'"xxh3": ?"',
    "encrypted part": r"(?=.{16}\Z)",
    "packed scenario": r"(?=.{8}$)",
}
"""A pattern per encoding. The checksum follows the match."""


@pytest.mark.parametrize("name", CHECKSUMS)
def test_a_sealed_encoding_is_accepted(name: str) -> None:
    """A sealed encoding is accepted: after its wrong checksum is replaced, it decodes as the original."""
    decoder = DECODERS[name]
    for data in decoder.seeds():
        match = re.search(CHECKSUMS[name].encode(), data, re.DOTALL)
        assert match is not None
        wrong = data[: match.end()] + (b"1" if data[match.end()] == ord("0") else b"0") + data[match.end() + 1 :]
        assert read(decoder, wrong) != read(decoder, data)
        assert read(decoder, decoder.sealed(wrong)) == read(decoder, data)
    forget_scratch()


def read(decoder: Decoder, data: bytes) -> object:
    """Return the decoded value of the data, or the error's text."""
    try:
        return decoder.decode(data)
    except RiffleError as refused:
        return str(refused)


def test_every_file_that_reads_external_data_has_a_decoder_or_a_reason() -> None:
    """Each file that reads external data has a decoder or a reason, and each decoder is used."""
    package = CHECKOUT / "riffle_spark"
    files = {
        str(path.relative_to(package).with_suffix(""))
        for path in package.rglob("*.py")
        if READS.search(path.read_text())
    }
    assert files == set(READERS)
    named = {name for reader in READERS.values() if not isinstance(reader, str) for name in reader}
    assert named | {"names", "answer of S3", "folder of a member"} == set(DECODERS)


def test_columns_that_cannot_be_read_back_are_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``--values`` generates columns, seals and reads them. A column that cannot be read is reported."""
    assert fuzz.main(["--values", "--inputs", "60", "--seed", "3", "--json"]) == 0
    parsed = json.loads(capsys.readouterr().out)
    assert (parsed["examples"], parsed["findings"]) == (60, [])
    monkeypatch.setattr(part_codec, "check_buffers", lambda table: table.validate(full=True))
    assert fuzz.main(["--values", "--inputs", "60", "--seed", "3"]) == 1
    assert "CorruptStateError" in capsys.readouterr().out
