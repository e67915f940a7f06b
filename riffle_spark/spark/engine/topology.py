"""In which rack each member stands. Knows host patterns, Hadoop's topology script and what members say of themselves.
Does not know what racks are for.
"""

import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase

__all__ = ["Topology", "ask_script"]

_HOSTS_A_CALL = 100
_TIMEOUT_SECONDS = 10.0
_STDERR_TOLD = 200


class Topology:
    """Tells racks. The first of these that knows one decides: a pattern that fits the host, the script, the member
    itself.

    ``patterns`` are pairs of a host pattern (``10.0.1.*``, upper and lower case are one) and a rack; the first that
    fits counts. ``script`` is a program as Hadoop's ``net.topology.script.file.name``: called with up to 100 hosts, it
    prints as many racks, in their order. It is asked again only when a host comes that it was not asked about. If it
    fails, ``warn`` is told, and no rack is taken from it.
    """

    def __init__(
        self, patterns: Sequence[tuple[str, str]], script: str | None, warn: Callable[[str], object],
        ask: Callable[[str, Sequence[str]], str] | None = None,
    ) -> None:  # fmt: skip
        self._patterns = [(pattern.lower(), rack) for pattern, rack in patterns]
        self._script = script
        self._warn = warn
        self._ask = ask or ask_script
        self._answered: dict[str, str | None] = {}

    def racks(self, members: Sequence[tuple[str, str, str | None]]) -> dict[str, str | None]:
        """Return the rack of each member from (member, host, rack by its own account); ``None`` where nobody knows."""
        by_pattern = {host: self._by_pattern(host) for _, host, _ in members}
        self._consult([host for host, rack in by_pattern.items() if rack is None and host])
        return {member: by_pattern[host] or self._answered.get(host) or own for member, host, own in members}

    def _by_pattern(self, host: str) -> str | None:
        return next((rack for pattern, rack in self._patterns if fnmatchcase(host.lower(), pattern)), None)

    def _consult(self, hosts: Sequence[str]) -> None:
        """Ask the script about all hosts that it has no rack for, if one of them is new."""
        if self._script is None or all(host in self._answered for host in hosts):
            return
        asked = sorted(host for host in hosts if self._answered.get(host) is None)
        self._answered.update(dict.fromkeys(asked))
        try:
            for start in range(0, len(asked), _HOSTS_A_CALL):
                some = asked[start : start + _HOSTS_A_CALL]
                self._answered.update(zip(some, self._answers(self._script, some), strict=True))
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            self._warn(f"topology_script {self._script} gave no racks, until another host comes: {error}")

    def _answers(self, script: str, hosts: Sequence[str]) -> list[str]:
        racks = self._ask(script, hosts).split()
        if len(racks) != len(hosts):
            raise ValueError(f"it printed {len(racks)} racks for {len(hosts)} hosts")
        return racks


def ask_script(script: str, hosts: Sequence[str], seconds: float = _TIMEOUT_SECONDS) -> str:
    """Return what the script prints for these hosts.

    Raises ``OSError`` if it cannot be run, ``ValueError`` if it fails, ``subprocess.TimeoutExpired`` after ``seconds``,
    when it and all that it started are killed.
    """
    process = subprocess.Popen(
        [script, *hosts], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        printed, complaint = process.communicate(timeout=seconds)
    except BaseException:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    if process.returncode != 0:
        raise ValueError(f"it ended with {process.returncode}: {complaint.strip()[-_STDERR_TOLD:]}")
    return printed
