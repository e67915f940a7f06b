"""Each failure in a row doubles the delay until the next try."""

from __future__ import annotations

from riffle_spark.protocol.delays import Delays


def test_the_delay_doubles_up_to_a_maximum_and_starts_again_after_a_success() -> None:
    """The delay of a key doubles with each failure up to a maximum, and a success starts it again."""
    delays = Delays[str](1, 6)
    assert [delays.record_failure("a", 0) for _ in range(4)] == [1, 2, 4, 6]
    assert (delays.is_delayed("a", 5), delays.is_delayed("a", 6), delays.is_delayed("b", 0)) == (True, False, False)
    delays.forget("a")
    assert delays.record_failure("a", 7) == 1


def test_a_failure_long_after_the_last_one_counts_as_the_first() -> None:
    """A failure that follows the end of a delay only after a long time counts as the first."""
    delays = Delays[str](1, 60, forgotten_after=10)
    assert delays.record_failure("a", 0) == 1
    assert delays.record_failure("a", 11) == 2
    assert delays.record_failure("a", 11 + 2 + 10 + 0.5) == 1
