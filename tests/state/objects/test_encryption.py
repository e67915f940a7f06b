"""Encryption keys: their texts and sources, the frames of encrypted parts, and the places that frames authenticate."""

from __future__ import annotations

import base64
import json
import pickle
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from riffle_spark.errors import ConfigError, CorruptStateError, UnavailableError
from riffle_spark.state.log import paths
from riffle_spark.state.objects import encryption
from riffle_spark.state.objects.encryption import (
    HEADER_BYTES_MAX,
    PLAIN,
    Keys,
    Place,
    frame_version,
    key_id_of,
    parse_keys,
    read_key_source,
)
from riffle_spark.state.objects.s3_client import unwrapped_key
from riffle_spark.state.schemas.store_schema import check_encryption_key, with_encryption_key
from tests.kit.fuzz import framed_parts
from tests.kit.servers.scripted_server import Answer, scripted_server

ONE, OTHER = (base64.b64encode(bytes([number]) * 32).decode() for number in (1, 2))
PLACE = paths.delta_place("totals", 3, 7, "1-ab")
OTHERS = [
    paths.delta_place("tails", 3, 7, "1-ab"), paths.delta_place("totals", 4, 7, "1-ab"),
    paths.delta_place("totals", 3, 8, "1-ab"), paths.delta_place("totals", 3, 7, "1-ac"),
    paths.output_place("totals", 7, "1-ab"), paths.snapshot_place("totals", 3, f"{7:020d}-1-ab"),
    paths.snapshot_place("totals", 3, f"{8:020d}-1-ab"), paths.snapshot_place("tails", 3, f"{7:020d}-1-ab"),
    paths.merged_place("totals", 3, "ab"), paths.merged_place("tails", 3, "ab"),
]  # fmt: skip
LISTS = [
    [f"a = {ONE}"], [f"a = {OTHER}"], [f"a = {ONE}", f"b = {OTHER}"],
    ["plain", f"b = {OTHER}"], [f"b = {OTHER}", "plain"],
]  # fmt: skip


def keys(*lines: str, unwrap: Callable[[bytes], bytes] = bytes, source: str = "file:/keys") -> Keys:
    """Return the keys of these lines."""
    return parse_keys("\n".join(lines), source, unwrap)


def refused(lines: list[str]) -> str:
    """Return the error text for invalid keys."""
    with pytest.raises(ConfigError) as caught:
        keys(*lines)
    return str(caught.value)


@given(st.binary(max_size=300), st.sampled_from([PLACE, *OTHERS]), st.sampled_from([PLACE, *OTHERS]))
def test_a_part_decrypts_in_its_own_place_only(data: bytes, place: Place, other: Place) -> None:
    """Property: a part decrypts only for the kind, store, key-group, version and attempt for which it was encrypted."""
    key_list = keys(f"a = {ONE}")
    sealed = key_list.new_encryption()(data, place)
    assert bytes(key_list.decrypt(sealed, place, "here")) == data
    assert (key_id_of(sealed[:HEADER_BYTES_MAX]), frame_version(sealed[:HEADER_BYTES_MAX])) == ("a", 2)
    if place != other:
        with pytest.raises(CorruptStateError, match="RIFFLE-0430"):
            key_list.decrypt(sealed, other, "here")


def test_frames_of_version_1_are_read() -> None:
    """Frames of version 1 decrypt in the place that version 1 authenticates, and frames of one version are refused as
    the other.
    """
    old = framed_parts.framed(b"row", frame=1)
    assert (frame_version(old), bytes(framed_parts.KEYS.decrypt(old, framed_parts.PLACE, "here"))) == (1, b"row")
    relabelled = [b"RFE2" + old[4:], b"RFE1" + framed_parts.framed(b"row")[4:]]
    for data in [*relabelled, framed_parts.retagged(b"RFE1" + framed_parts.framed(b"row")[4:])[:-1]]:
        with pytest.raises(CorruptStateError, match="RIFFLE-0430"):
            framed_parts.KEYS.decrypt(data, framed_parts.PLACE, "here")
    assert frame_version(b"row") is None


@given(st.binary(max_size=99), st.sampled_from(LISTS), st.sampled_from(LISTS))
def test_the_first_bytes_of_a_part_show_if_keys_can_decrypt_it(
    data: bytes, wrote: list[str], reading: list[str]
) -> None:
    """Property: the first bytes of a part tell whether a list of keys can decrypt it. Unfinished files and files that
    do not start like a part count as readable.
    """
    sealed, reading_keys = keys(*wrote).new_encryption()(b"\xff" * 99 + data, PLACE), keys(*reading)
    try:
        opens = bool(reading_keys.decrypt(sealed, PLACE, "here"))
    except ConfigError:
        opens = False
    enough = len(sealed) >= HEADER_BYTES_MAX
    assert reading_keys.can_decrypt(sealed[:HEADER_BYTES_MAX]) == (opens or not enough)
    assert reading_keys.can_decrypt(sealed[: HEADER_BYTES_MAX - 1])
    assert reading_keys.can_decrypt(bytes(HEADER_BYTES_MAX))
    assert (reading_keys.fingerprint == keys(*wrote).fingerprint) == (set(wrote) == set(reading))


@given(st.data())
def test_a_changed_or_missing_byte_raises_one_of_riffles_errors(data: st.DataObject) -> None:
    """Property: a part with a flipped bit or missing bytes raises one of riffle's errors."""
    key_list = keys(f"a = {ONE}")
    sealed = bytearray(key_list.new_encryption()(b"a row of another user", PLACE))
    if data.draw(st.booleans()):
        sealed[data.draw(st.integers(0, len(sealed) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    else:
        del sealed[data.draw(st.integers(0, len(sealed) - 1)) :]
    with pytest.raises((ConfigError, CorruptStateError)):
        key_list.decrypt(bytes(sealed), PLACE, "here")


def test_equal_parts_are_encrypted_to_different_bytes() -> None:
    """Equal parts of one or two deltas are encrypted to different bytes."""
    seal = keys(f"a = {ONE}").new_encryption()
    some = [seal(b"row", PLACE), seal(b"row", PLACE), keys(f"a = {ONE}").new_encryption()(b"row", PLACE)]
    assert len({part[-20:] for part in some}) == 3
    assert len({part[14:30] for part in some}) == 2  # the salts


def test_a_part_that_is_too_large_to_be_encrypted_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part that is larger than one encryption can be is refused with a remedy, before anything is encrypted."""
    monkeypatch.setattr(encryption, "_PART_BYTES_MAX", 10)
    encrypt = keys(f"a = {ONE}").new_encryption()
    assert encrypt(bytes(10), PLACE)
    with pytest.raises(ConfigError, match="11 bytes is too large") as refused:
        encrypt(bytes(11), PLACE)
    assert "riffle dispatch" in refused.value.remedy


def test_the_last_key_writes_and_all_read() -> None:
    """Parts of older keys stay readable, new parts use the last key, and errors name a missing or wrong key."""
    before, now = keys(f"a = {ONE}"), keys("# of July", f"a={ONE}", f" b = {OTHER} ", "")
    old, new = before.new_encryption()(b"row", PLACE), now.new_encryption()(b"row", PLACE)
    assert (key_id_of(old), key_id_of(new)) == ("a", "b")
    assert bytes(now.decrypt(old, PLACE, "")) == b"row"
    with pytest.raises(ConfigError, match="RIFFLE-0440"):
        before.decrypt(new, PLACE, "there")
    with pytest.raises(ConfigError, match="RIFFLE-0429"):
        keys(f"a = {OTHER}").decrypt(old, PLACE, "there")


def test_unencrypted_parts_are_read_only_if_plain_is_listed() -> None:
    """Unencrypted parts are read only if `plain` is listed, and written if `plain` is the last line."""
    with pytest.raises(ConfigError, match="RIFFLE-0428"):
        keys(f"a = {ONE}").decrypt(b"row", PLACE, "there")
    assert keys(PLAIN, f"a = {ONE}").decrypt(b"row", PLACE, "there") == b"row"
    back = keys(f"a = {ONE}", PLAIN)
    assert (back.writes, back.new_encryption()(b"row", PLACE), key_id_of(b"row")) == (PLAIN, b"row", PLAIN)
    assert key_id_of(back.with_write_key(keys(f"a = {ONE}").write_key).new_encryption()(b"row", PLACE)) == "a"
    assert keys(PLAIN, f"a = {ONE}").with_write_key(back.write_key).writes == PLAIN


def test_a_key_with_the_right_id_but_other_bytes_is_refused() -> None:
    """A process refuses to write with a key that has the requested id but other bytes, or if only the id is given. A
    log of an earlier version, which stores only ids, accepts any key of that id.
    """
    first, other = keys(f"a = {ONE}"), keys(f"a = {OTHER}", f"b = {ONE}")
    assert first.write_key.startswith("a/")
    assert len(first.write_key) == len("a/") + 16
    assert keys(f"a = {ONE}", f"b = {OTHER}").with_write_key(first.write_key).writes == "a"
    for write_key in (first.write_key, "a", "a/", "b"):
        with pytest.raises(ConfigError, match="RIFFLE-0426"):
            other.with_write_key(write_key)
    with pytest.raises(ConfigError, match="RIFFLE-0440"):
        other.with_write_key("c/" + first.write_key[2:])
    with pytest.raises(ConfigError, match="RIFFLE-0468"):
        check_encryption_key(with_encryption_key({}, first.write_key), keys(f"a = {OTHER}").write_key, "root")
    for stored in ("", "a", PLAIN, other.write_key, first.write_key):
        check_encryption_key(with_encryption_key({}, stored), first.write_key, "root")


@pytest.mark.parametrize("source", ["file:/keys", "env:KEYS"])
@pytest.mark.parametrize("comment", [f"# retired, b = {OTHER}", "# until July, plain", f"# a,plain,b={OTHER}"])
def test_a_comment_adds_no_key(comment: str, source: str) -> None:
    """A comment adds no key and does not allow unencrypted parts, wherever it is and whatever it contains."""
    for lines in ([comment, f"a = {ONE}"], [f"a = {ONE}", comment], [f"a = {ONE}  {comment}"]):
        key_list = keys(*lines, source=source)
        assert repr(key_list) == "Keys(a; a writes)"
        with pytest.raises(ConfigError, match="RIFFLE-0428"):
            key_list.decrypt(b"row", PLACE, "there")


def test_commas_separate_keys_only_in_variables() -> None:
    """Commas separate keys only in variables, and errors count lines in files and variables."""
    assert "The key in line 2" in refused(["# of July, plain", f"a = {ONE}, b = {OTHER}"])
    with pytest.raises(ConfigError, match="RIFFLE-0433"):
        keys(f"a = {ONE}, b = {OTHER}", "c = x!", source="env:KEYS")


@pytest.mark.parametrize(
    "lines",
    [[], ["# a"], [ONE], [f"a {ONE}"], [f"= {ONE}"], ["a ="], ["a = x!"], [f"a = {ONE[:20]}"], [f"a b = {ONE}"],
     [f"a = {ONE}", f"a = {OTHER}"], [f"plain = {ONE}"], [f"{'a' * 65} = {ONE}"]],
)  # fmt: skip
def test_invalid_key_texts_are_refused_without_repeating_them(lines: list[str]) -> None:
    """Invalid key texts are refused by line or id, without any part of a key in the error."""
    assert ONE[:12] not in refused(lines)


def test_keys_show_only_their_ids_and_cannot_be_pickled() -> None:
    """The text of keys shows only their ids, and keys cannot be pickled."""
    assert repr(keys(f"a = {ONE}", f"b = {OTHER}")) == "Keys(a, b; b writes)"
    with pytest.raises(TypeError, match="never pickled"):
        pickle.dumps(keys(f"a = {ONE}"))


def test_key_sources_are_files_and_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Key sources are files, URLs of files and variables. A missing source is refused, and an error never repeats a key
    that was written into the setting itself.
    """
    (tmp_path / "keys").write_text(f"a = {ONE}\n")
    monkeypatch.setenv("KEYS_OF_THIS_TEST", f"a={ONE},b={OTHER}")
    assert read_key_source(f"file:{tmp_path}/keys") == read_key_source(f"file://{tmp_path}/keys") == f"a = {ONE}\n"
    assert keys(read_key_source("env:KEYS_OF_THIS_TEST"), source="env:KEYS_OF_THIS_TEST").writes == "b"
    (tmp_path / "odd").write_bytes(b"\xff\xfe\xfa")
    for source in (f"file:{tmp_path}/other", f"file:{tmp_path}/odd", "env:RIFFLE_NOT_SET"):
        with pytest.raises(ConfigError, match=re.escape(source.partition(":")[2])):
            read_key_source(source)


@pytest.mark.parametrize("key", [ONE, ONE.rstrip("="), f"a={ONE}", "01" * 32, "ab" * 32, ""])
@pytest.mark.parametrize("before", ["", "env:", "file:", "file:/", "file://", "kms:"])
def test_a_key_written_into_the_setting_is_not_repeated(before: str, key: str) -> None:
    """A key that is written into the setting itself is refused without repeating the key or half of it."""
    with pytest.raises(ConfigError) as caught:
        read_key_source(before + key)
    assert not key or key[-20:] not in str(caught.value)
    assert not key or key[:20] not in str(caught.value)


def test_a_byte_order_mark_in_a_key_file_is_ignored(tmp_path: Path) -> None:
    """A byte order mark at the start of a key file is ignored, and files that are not UTF-8 are refused."""
    (tmp_path / "keys").write_bytes(f"a = {ONE}\r\nb = {OTHER}\r\n".encode("utf-8-sig"))
    assert repr(keys(read_key_source(f"file:{tmp_path}/keys"))) == "Keys(a, b; b writes)"
    (tmp_path / "keys").write_bytes(f"a = {ONE}\n".encode("utf-16"))
    with pytest.raises(ConfigError, match="RIFFLE-0437"):
        read_key_source(f"file:{tmp_path}/keys")


@pytest.mark.parametrize(("mode", "warned"), [(0o600, 0), (0o640, 0), (0o644, 1), (0o444, 1)])
def test_a_world_readable_key_file_logs_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, warned: int
) -> None:
    """A key file that everybody can read logs one warning per process with the path and the remedy, and is used."""
    (tmp_path / "keys").write_text(f"a = {ONE}\n")
    (tmp_path / "keys").chmod(mode)
    for _ in range(3):
        assert read_key_source(f"file:{tmp_path}/keys") == f"a = {ONE}\n"
    assert len(caplog.messages) == warned
    assert all(f"{tmp_path}/keys" in message and "chmod o-r" in message for message in caplog.messages)
    assert ONE not in caplog.text


def test_a_key_path_with_a_nul_byte_is_refused() -> None:
    """A path with a NUL byte is refused with riffle's error."""
    with pytest.raises(ConfigError, match="RIFFLE-0437"):
        read_key_source("file:/keys\0")


def test_wrapped_keys_are_unwrapped_by_kms(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrapped key is decrypted by KMS, and a refusal, an invalid answer or throttling is an error without the key."""
    for name, value in (("AWS_ACCESS_KEY_ID", "id"), ("AWS_SECRET_ACCESS_KEY", "secret"), ("AWS_MAX_ATTEMPTS", "1")):
        monkeypatch.setenv(name, value)
    answer = json.dumps({"KeyId": "k", "Plaintext": ONE, "EncryptionAlgorithm": "SYMMETRIC_DEFAULT"}).encode()
    with scripted_server() as kms:
        monkeypatch.setenv("AWS_ENDPOINT_URL_KMS", kms.endpoint)
        kms.answers[:] = [Answer(200, answer)]
        wrapped = keys(f"a = kms:{OTHER}", unwrap=lambda key: unwrapped_key(key, "eu-central-1"))
        assert bytes(keys(f"a = {ONE}").decrypt(wrapped.new_encryption()(b"row", PLACE), PLACE, "")) == b"row"
        assert kms.requests[0][2]["X-Amz-Target"] == "TrentService.Decrypt"
        kms.answers[:] = [Answer(400, json.dumps({"__type": "AccessDeniedException", "message": OTHER}).encode())]
        with pytest.raises(ConfigError, match="RIFFLE-0451") as caught:
            unwrapped_key(b"wrapped", "eu-central-1")
        assert OTHER not in str(caught.value)
        for no_key in (b"{}", b"who are you?"):
            kms.answers[:] = [Answer(200, no_key)]
            with pytest.raises(ConfigError, match="RIFFLE-0452"):
                unwrapped_key(b"wrapped", "eu-central-1")
        kms.answers[:] = [Answer(400, json.dumps({"__type": "ThrottlingException"}).encode())]
        with pytest.raises(UnavailableError, match="RIFFLE-0453"):
            unwrapped_key(b"wrapped", "eu-central-1")
