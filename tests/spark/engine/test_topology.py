"""Racks from patterns, from a topology script in Hadoop's form, and from the members themselves."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from riffle_spark.spark.engine.topology import Topology, ask_script

HOSTS = ["10.0.1.7", "10.0.2.8", "10.0.3.9"]
MEMBERS = [(f"m{number}", host, f"own-{number}") for number, host in enumerate(HOSTS)]


def script_in(folder: Path, body: str) -> str:
    """Return a program of that body, which also counts its calls in the file ``calls``."""
    path = folder / "topology.sh"
    path.write_text(f'#!/bin/sh\necho "$#" >> {folder}/calls\n{body}\n')
    path.chmod(0o755)
    return str(path)


def calls(folder: Path) -> list[int]:
    """Return with how many hosts the program was called, each time."""
    return [int(line) for line in (folder / "calls").read_text().split()]


def no_warning(text: str) -> None:
    """Refuse a warning."""
    raise AssertionError(text)


def test_patterns_go_before_the_script_and_the_script_before_what_members_say(tmp_path: Path) -> None:
    """Each source decides what those before it leave open; nothing is asked that a pattern answers."""
    script = script_in(tmp_path, 'for host in "$@"; do case $host in 10.0.2.*) echo /dc/two;; *) exit 1;; esac; done')
    topology = Topology([("10.0.1.*", "first"), ("10.0.3.9", "third")], script, no_warning)
    assert topology.racks(MEMBERS) == {"m0": "first", "m1": "/dc/two", "m2": "third"}
    assert calls(tmp_path) == [1]
    assert Topology([], None, no_warning).racks([*MEMBERS, ("m9", "", None)]) == {
        "m0": "own-0", "m1": "own-1", "m2": "own-2", "m9": None,
    }  # fmt: skip


def test_the_first_pattern_that_fits_counts_whatever_the_case() -> None:
    """A host name is the same in upper and lower case; the order of patterns is the user's."""
    topology = Topology([("NODE-1*.example", "a"), ("*.example", "b")], None, no_warning)
    hosts = ["node-17.Example", "node-2.example", "elsewhere"]
    assert topology.racks([(host, host, None) for host in hosts]) == dict(zip(hosts, ["a", "b", None], strict=True))


def test_the_script_is_asked_once_a_host_and_in_hundreds(tmp_path: Path) -> None:
    """Many hosts go in a few calls; the same hosts again in none; a new host alone."""
    script = script_in(tmp_path, 'for host in "$@"; do echo "/rack-of/$host"; done')
    topology = Topology([], script, no_warning)
    members = [(f"m{number}", f"host-{number:03d}", None) for number in range(230)]
    assert topology.racks(members) == {f"m{number}": f"/rack-of/host-{number:03d}" for number in range(230)}
    topology.racks(members)
    assert calls(tmp_path) == [100, 100, 30]
    topology.racks([*members[5:], ("new", "host-new", None)])
    assert calls(tmp_path) == [100, 100, 30, 1]


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("echo no such table >&2; exit 3", "ended with 3: no such table"),
        ("echo /only/one", "1 racks for 3 hosts"),
        ("", "0 racks for 3 hosts"),
    ],
)
def test_a_script_that_fails_is_one_warning_and_no_rack(tmp_path: Path, body: str, told: str) -> None:
    """Members then stand where they say; the same hosts are not asked again, all of them with the next new one."""
    warnings: list[str] = []
    topology = Topology([], script_in(tmp_path, body), warnings.append)
    assert topology.racks(MEMBERS) == topology.racks(MEMBERS) == {"m0": "own-0", "m1": "own-1", "m2": "own-2"}
    assert [told in warning for warning in warnings] == [True]
    script_in(tmp_path, 'for host in "$@"; do echo /now; done')
    assert topology.racks([*MEMBERS, ("m3", "another", None)]) == dict.fromkeys(["m0", "m1", "m2", "m3"], "/now")
    assert calls(tmp_path) == [3, 4]


def test_a_script_that_is_not_there_is_one_warning(tmp_path: Path) -> None:
    """A wrong path is told of, with the path."""
    warnings: list[str] = []
    topology = Topology([], f"{tmp_path}/nowhere.sh", warnings.append)
    assert topology.racks(MEMBERS)["m0"] == "own-0"
    assert [f"{tmp_path}/nowhere.sh" in warning for warning in warnings] == [True]


def test_a_script_that_hangs_is_killed_with_all_that_it_started(tmp_path: Path) -> None:
    """What it started keeps its output open, and is killed too, so that the wait is bounded."""
    script = script_in(tmp_path, f"sleep 300 & echo $! > {tmp_path}/child; sleep 300")
    began = time.monotonic()
    with pytest.raises(subprocess.TimeoutExpired):
        ask_script(script, HOSTS, seconds=0.5)
    assert time.monotonic() - began < 100
    state = Path(f"/proc/{(tmp_path / 'child').read_text().strip()}/stat")
    deadline = time.monotonic() + 60
    while state.exists() and state.read_text().rpartition(")")[2].split()[0] not in "ZX":
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_what_the_first_calls_told_is_kept_when_a_later_one_fails() -> None:
    """Racks of the first hundred hosts count although the next call came to nothing."""
    warnings: list[str] = []

    def ask(_: str, hosts: Sequence[str]) -> str:
        if len(hosts) < 100:
            raise subprocess.TimeoutExpired("topology.sh", 10)
        return "\n".join("/rack" for _ in hosts)

    members = [(f"m{number:03d}", f"host-{number:03d}", None) for number in range(150)]
    racks = Topology([], "topology.sh", warnings.append, ask).racks(members)
    assert [racks["m000"], racks["m099"], racks["m100"]] == ["/rack", "/rack", None]
    assert len(warnings) == 1
