"""Two minutes of ``./run chaos`` on real processes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.kit.folders import CHECKOUT

pytestmark = [pytest.mark.cluster, pytest.mark.long]

SECONDS = 1200


@pytest.mark.timeout(SECONDS + 60)
def test_events_are_delivered_exactly_once_while_processes_fail() -> None:
    """Three queries deliver each sent event exactly once while broker, store, executors and driver are broken.

    No query fails by itself. Two minutes are too short for every kind of fault.
    """
    command = [sys.executable, "-m", "tests.chaos", "--seed", "1", "--minutes", "2", "--least", "0", "--rate", "2000"]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=SECONDS, check=False)
    print(done.stderr[-5000:])
    parsed = json.loads(done.stdout)
    assert (parsed["lost"], parsed["doubled"], parsed["wrong"], parsed["failures"]) == (0, 0, 0, []), parsed
    assert done.returncode == 0, parsed
    lanes = ({"store"}, {"SIGKILL", "SIGSTOP", "broker"}, {"disk", "damaged", "clocks", "rebalance", "drain", "pin"})
    begins = {kind.replace(":", " ").split()[0] for kind in parsed["faults"]}
    assert all(begins & lane for lane in lanes), parsed["faults"]
    assert parsed["rows"] > 100_000
