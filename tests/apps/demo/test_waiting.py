"""Nothing of the demo is silent for long."""

from __future__ import annotations

import itertools
import threading
import time

from apps.demo.waiting import Waiting

SECONDS = 0.05


def test_a_silence_is_broken_again_and_again() -> None:
    """While nothing is told, what is waited for is said with every interval, and nothing after the end."""
    said, thrice = [], threading.Event()

    def say(text: str) -> None:
        said.append((time.monotonic(), text))
        if len(said) == 3:
            thrice.set()

    began, threads = time.monotonic(), threading.active_count()
    with Waiting(say, lambda: f"line {len(said)}", SECONDS):
        assert thrice.wait(30)
    assert threading.active_count() == threads
    assert [text.partition(": ")[2] for _, text in said[:3]] == ["line 0", "line 1", "line 2"]
    times = [began, *(when for when, _ in said)]
    assert all(later - earlier >= SECONDS * 0.9 for earlier, later in itertools.pairwise(times))


def test_what_is_told_counts_as_news() -> None:
    """As long as something else is told, nothing is added."""
    said: list[str] = []
    with Waiting(said.append, lambda: "still", 60.0) as waiting:
        for _ in range(5):
            waiting.told()
    assert not said
