"""The known run of a query is replaced when it has ended, also with its JVM. These tests start no Spark."""

from __future__ import annotations

import pytest

from riffle_spark.spark.engine.active_run import active_run


class Execution:
    """A stand-in for the JVM's handle of a run."""

    def __init__(self, run_id: str, trigger: str = "ProcessingTimeTrigger(0)") -> None:
        self.is_active = True
        self.error: Exception | None = None
        self._run_id = run_id
        self._trigger = trigger

    def isActive(self) -> bool:  # noqa: N802 - Spark's name
        """Return whether the run is active, or raise the JVM's error."""
        if self.error is not None:
            raise self.error
        return self.is_active

    def runId(self) -> str:  # noqa: N802 - Spark's name
        """Return the id of the run."""
        return self._run_id

    def trigger(self) -> Execution:
        """Return the trigger."""
        return self

    def toString(self) -> str:  # noqa: N802 - Java's name
        """Return the text of the trigger."""
        return self._trigger

    def offsetLog(self) -> str:  # noqa: N802 - Spark's name
        """Return the offset log."""
        return f"log of {self._run_id}"


def test_a_run_is_known_until_it_ends() -> None:
    """An active run is not looked up again. After its end the next run is found, or none."""
    first, second = Execution("one"), Execution("two", "AvailableNowTrigger")
    found = active_run("query of a known run", lambda: first)
    assert found is not None
    assert (found.id, found.offset_log, found.is_available_now) == ("one", "log of one", False)
    assert active_run("query of a known run", lambda: second) is found
    first.is_active = False
    again = active_run("query of a known run", lambda: second)
    assert again is not None
    assert (again.id, again.is_available_now) == ("two", True)
    second.is_active = False
    assert active_run("query of a known run", lambda: None) is None


def test_a_run_ends_with_its_jvm_but_not_if_the_batch_is_interrupted() -> None:
    """A run whose JVM does not answer has ended. An interruption of the batch is raised."""
    first, second = Execution("one"), Execution("two")
    active_run("query of a lost JVM", lambda: first)
    first.error = RuntimeError("An error occurred while calling o1.isActive.\n: java.lang.InterruptedException")
    with pytest.raises(RuntimeError, match="InterruptedException"):
        active_run("query of a lost JVM", lambda: second)
    first.error = ConnectionRefusedError("the JVM has ended")
    found = active_run("query of a lost JVM", lambda: second)
    assert found is not None
    assert found.id == "two"
    second.is_active = False
    assert active_run("query of a lost JVM", lambda: None) is None
