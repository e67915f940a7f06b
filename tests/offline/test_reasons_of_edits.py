"""Reasons of state changes must not contain the key, because the log keeps them."""

from __future__ import annotations

import pytest

from riffle_spark.errors import ConfigError
from riffle_spark.offline.state_edits import Editor
from tests.kit.root_commands import run_command


@pytest.mark.parametrize(
    ("key", "reason", "is_refused"),
    [
        ("ann", "ann asked for it", True),
        ("ann", "asked for by ann.", True),
        ('"ann"', "ann left", True),
        ("ann smith", "erase ann smith", True),
        ("a.n", "a.n left", True),
        ("a.n", "ann left", False),
        ("ann", "the annual clean-up", False),
        ("1", "ticket 4711", False),
        ("1", "ticket 1", True),
        ("", "ticket 7", False),
    ],
)
def test_a_reason_that_contains_the_key_as_a_word_is_refused(key: str, reason: str, *, is_refused: bool) -> None:
    """A reason that contains the key as a word is refused, and a key within a longer word or number is allowed."""
    if is_refused:
        with pytest.raises(ConfigError, match="RIFFLE-1609"):
            Editor.of_process(reason, key)
    else:
        assert Editor.of_process(reason, key).reason == reason


@pytest.mark.parametrize("more", [(), ("--purge",), ("--request",)])
def test_every_edit_command_refuses_its_key_in_the_reason(more: tuple[str, ...]) -> None:
    """A deletion, a purge, a request and a set value are usage errors if their reason contains the key."""
    done = run_command(
        "state", "delete", "memory://no-root", "--store", "totals", "--key", "ann", "--reason", "for ann", *more
    )
    assert (done.exit_code, "RIFFLE-1609" in done.output) == (2, True), done.output
    done = run_command(
        "state", "set", "memory://no-root", "--store", "totals", "--key", "ann", "--value", "{}", "--reason", "for ann"
    )
    assert (done.exit_code, "RIFFLE-1609" in done.output) == (2, True), done.output
