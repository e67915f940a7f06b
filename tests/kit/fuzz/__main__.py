"""``./run fuzz``: feed hostile inputs to every decoder, each in a watched child process of bounded memory.

With ``--values``: seal generated values of all types and read them again, without Spark.
"""

from __future__ import annotations

import argparse
import base64
import json
import mmap
import os
import random
import resource
import signal
import struct
import sys
import tempfile
import time
import traceback
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

import pyarrow as pa

from riffle_spark.errors import RiffleError
from tests.kit.folders import CHECKOUT
from tests.kit.fuzz.decoders import DECODERS, Decoder, forget_scratch
from tests.kit.fuzz.mutations import mutated
from tests.kit.fuzz.round_trips import round_trips

HANG_SECONDS = 10.0
"""The most processor time that one input may take."""
BLOCKED_SECONDS = 60.0
"""The most time that one input may take by the clock. It is longer, because a busy machine lets all processes wait."""
MEMORY_BYTES = 1 << 30
"""The most memory that a decoder may use in addition to the memory of its process at the start."""
_FINDINGS_MOST = 8
_ERRORS_MOST = 4000
_INPUT_MOST = 1 << 20
_HEADER = struct.Struct("<qq")
_TICKS = os.sysconf("SC_CLK_TCK")


Seeds = Mapping[str, Sequence[bytes]]
Feed = Callable[["InputRunner", Seeds], None]
"""A function that gives a judge its inputs. It runs in the child process."""


@dataclass
class Outcome:
    """The result of one decoder: ``refusal`` is its last refusal, ``traces`` belong to unexpected errors."""

    decoder: str
    inputs: int = 0
    refused: int = 0
    refusal: str = ""
    traces: list[str] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    kept_inputs: list[bytes] = field(default_factory=list)


@dataclass
class InputRunner:
    """Feeds inputs to a decoder, writes the number of the current input to the board, and reports findings."""

    decoder: Decoder
    numbers: range
    seed: int
    board: mmap.mmap
    report: TextIO
    _at: int = 0
    _refused: int = 0
    _last_refusal: str = ""
    _problems: set[str] = field(default_factory=set)

    def __call__(self, data: bytes) -> None:
        """Feed one input; exit the process after the last one."""
        number = self.numbers[self._at]
        _HEADER.pack_into(self.board, 0, number, len(data))
        self.board[_HEADER.size : _HEADER.size + min(len(data), _INPUT_MOST)] = data[:_INPUT_MOST]
        try:
            self.decoder.decode(data)
        except RiffleError as refused:
            self._refused += 1
            self._last_refusal = f"{type(refused).__name__}: {refused}"
        except BaseException as error:  # noqa: BLE001 - that is what is looked for
            self._report_problem(number, _error_text(error), data)
        self._at += 1
        if self._at == len(self.numbers) or len(self._problems) >= _FINDINGS_MOST:
            self._leave()

    def _report_problem(self, number: int, problem: str, data: bytes) -> None:
        if problem not in self._problems:
            self._problems.add(problem)
            finding = f"{self.decoder.name}, input {number} of seed {self.seed}: {problem}"
            trace = traceback.format_exc()[-_ERRORS_MOST:]
            self.report.write(json.dumps({"finding": finding, "input": data.hex(), "trace": trace}) + "\n")
            self.report.flush()

    def _leave(self) -> None:
        self.report.write(json.dumps({"refused": self._refused, "why": self._last_refusal}) + "\n")
        self.report.flush()
        forget_scratch()
        os._exit(0)


def unguided(judge: InputRunner, seeds: Seeds) -> None:
    """Feed the real encodings first, and then mutations of them. The number of an input determines its bytes."""
    own_seeds = seeds[judge.decoder.name]
    other_seeds = others_in(seeds)
    for number in judge.numbers:
        chance = random.Random(f"{judge.seed}/{judge.decoder.name}/{number}")
        judge(own_seeds[number] if number < len(own_seeds) else mutated(chance, own_seeds, other_seeds))


def others_in(seeds: Seeds) -> list[bytes]:
    """Return the first three encodings of every decoder."""
    return [data for of in seeds.values() for data in of[:3]]


def main(arguments: Sequence[str] | None = None, guided: Feed | None = None) -> int:
    """Run the fuzzer and return 1 if there is a finding.

    ``guided`` is the feed of the guided fuzzer, if there is one.
    """
    parser = argparse.ArgumentParser("./run fuzz", description=__doc__)
    parser.add_argument("--guided", action="store_true", help="led by the coverage of riffle_spark, with atheris")
    parser.add_argument("--inputs", type=int, default=100_000, help="of all decoders together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--decoder", action="append", choices=list(DECODERS), help="this one only; may be repeated")
    parser.add_argument("--replay", type=Path, help="give this file's bytes to the decoder that is named, or to all")
    parser.add_argument("--keep", type=Path, default=Path("fuzz-findings"), help="the folder for inputs that did harm")
    parser.add_argument("--values", action="store_true", help="seal and read generated values instead of hostile bytes")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if options.inputs < 1:
        parser.error(f"--inputs: {options.inputs} is less than 1, nothing would be tried")
    if options.values:
        return _round_trips(options.inputs, options.seed, as_json=options.json)
    if options.guided and guided is None:
        parser.error("there is no atheris in this environment: ./run fuzz --guided makes one that has it")
    feed = guided if options.guided and guided else unguided
    chosen = [DECODERS[name] for name in options.decoder or DECODERS]
    if options.replay:
        data = options.replay.read_bytes()
        return max([_replayed(decoder, data) for decoder in chosen])
    began = time.monotonic()
    seeds = {decoder.name: decoder.seeds() for decoder in chosen}
    outcomes = []
    for number, decoder in enumerate(chosen):
        count = options.inputs * (number + 1) // len(chosen) - options.inputs * number // len(chosen)
        outcomes.append(fuzzed(decoder, seeds, count, options.seed, feed))
        _keep(outcomes[-1], options.keep)
        if not options.json:
            print(_line(outcomes[-1]), flush=True)
    summary = {
        "inputs": sum(outcome.inputs for outcome in outcomes),
        "seed": options.seed,
        "decoders": len(outcomes),
        "refused": sum(outcome.refused for outcome in outcomes),
        "findings": [f for outcome in outcomes for f in outcome.findings],
        "seconds": round(time.monotonic() - began, 1),
        "by_decoder": {outcome.decoder: outcome.inputs for outcome in outcomes},
    }
    print(
        json.dumps(summary)
        if options.json
        else f"{summary['inputs']} inputs in {summary['seconds']} s, {len(summary['findings'])} findings"
    )
    return 1 if summary["findings"] else 0


def _round_trips(count: int, seed: int, *, as_json: bool) -> int:
    """Seal and read ``count`` generated examples. Return 1 if a value changed."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys"
        keys.touch(mode=0o600)
        keys.write_text(f"a = {base64.b64encode(bytes(32)).decode()}\n")
        values = round_trips(count, seed, f"file:{keys}")
    summary = {
        "examples": values.examples,
        "seed": seed,
        "by_variant": values.by_variant,
        "findings": values.findings,
        "seconds": round(time.monotonic() - began, 1),
    }
    if as_json:
        print(json.dumps(summary))
    else:
        counts = ", ".join(f"{count} {variant}" for variant, count in sorted(values.by_variant.items()))
        print(*values.findings, f"{values.examples} examples in {summary['seconds']} s: {counts}", sep="\n")
    return 1 if values.findings else 0


def _replayed(decoder: Decoder, data: bytes) -> int:
    """Feed one input to a decoder within the usual limits, print the outcome, and return 1 for a finding."""
    outcome = fuzzed(decoder, {decoder.name: []}, 1, 0, lambda judge, _: judge(data))
    if outcome.findings:
        print(*outcome.traces, f"a finding: {outcome.findings[0]}", sep="\n")
        return 1
    print(f"{decoder.name}: {f'refused with an error of ours, {outcome.refusal}' if outcome.refused else 'read'}")
    return 0


def _line(outcome: Outcome) -> str:
    head = f"{outcome.decoder:<20}{outcome.inputs:>10} inputs{outcome.refused:>10} refused"
    return "\n".join([head, *(f"  {finding}" for finding in outcome.findings)])


def _keep(outcome: Outcome, folder: Path) -> None:
    for number, data in enumerate(outcome.kept_inputs):
        folder.mkdir(exist_ok=True)
        path = folder / f"{outcome.decoder.replace(' ', '-')}-{zlib.crc32(data):08x}"
        path.write_bytes(data)
        outcome.findings[number] += f"\n    ./run fuzz --decoder '{outcome.decoder}' --replay {path}"


def fuzzed(decoder: Decoder, seeds: Seeds, count: int, seed: int, feed: Feed = unguided) -> Outcome:
    """Feed inputs to a decoder. After each input that ends the child process, another child continues."""
    outcome = Outcome(decoder.name)
    first = 0
    with mmap.mmap(-1, _HEADER.size + _INPUT_MOST) as board:
        while first < count and len(outcome.findings) < _FINDINGS_MOST:
            with tempfile.TemporaryFile("w+") as report:
                judge = InputRunner(decoder, range(first, count), seed, board, report)
                first = _child_ran(judge, seeds, feed, outcome)
    outcome.inputs = first
    return outcome


def _child_ran(judge: InputRunner, seeds: Seeds, feed: Feed, outcome: Outcome) -> int:
    """Run a child until it ends or hangs. Return the number of the next input."""
    board = judge.board
    _HEADER.pack_into(board, 0, judge.numbers.start, 0)
    with tempfile.TemporaryFile("w+") as errors:
        child = os.fork()
        if child == 0:
            _work(judge, seeds, feed, errors)
        hung = _watched(child, board)
        _, status = os.waitpid(child, 0)
        if status and not hung:
            sys.stderr.write(_end_of(errors))
    judge.report.seek(0)
    lines = [json.loads(line) for line in judge.report]
    number, length = _HEADER.unpack_from(board, 0)
    for entry in lines:
        if "finding" in entry:
            outcome.findings.append(entry["finding"])
            outcome.kept_inputs.append(bytes.fromhex(entry["input"]))
            outcome.traces.append(entry["trace"])
        else:
            outcome.refused += entry["refused"]
            outcome.refusal = entry["why"]
    if hung or status:
        problem = hung or f"ended its process: {_ending(status)}"
        outcome.findings.append(f"{judge.decoder.name}, input {number} of seed {judge.seed}: {problem}")
        outcome.kept_inputs.append(board[_HEADER.size : _HEADER.size + min(length, _INPUT_MOST)])
    return int(number) + 1


def _end_of(file: TextIO) -> str:
    file.seek(max(0, file.seek(0, os.SEEK_END) - _ERRORS_MOST))
    return file.read()


def _ending(status: int) -> str:
    return signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else f"status {os.WEXITSTATUS(status)}"


def _watched(child: int, board: mmap.mmap) -> str:
    """Wait for a child.

    Kill it and return the exceeded limit if one input takes too much processor time or too long.
    """
    current = -1
    since = 0.0
    began = 0.0
    while os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        number = _HEADER.unpack_from(board, 0)[0]
        used_seconds = _processor_seconds(child)
        clock = time.monotonic()
        if number != current:
            current = number
            since = used_seconds
            began = clock
        hung = f"hung for {HANG_SECONDS:g} s" if used_seconds - since > HANG_SECONDS else ""
        if not hung and clock - began > BLOCKED_SECONDS:
            hung = f"blocked for {BLOCKED_SECONDS:g} s, {used_seconds - since:.1f} s of them at work"
        if hung:
            os.kill(child, signal.SIGKILL)
            return hung
        time.sleep(0.02)
    return ""


def _processor_seconds(process: int) -> float:
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _work(judge: InputRunner, seeds: Seeds, feed: Feed, errors: TextIO) -> None:
    """Feed the inputs as the child process, with limited memory. It never returns."""
    try:
        pa.set_memory_pool(pa.system_memory_pool())
        pa.set_cpu_count(1)
        own_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (own_bytes + MEMORY_BYTES, own_bytes + MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(errors.fileno(), 2)
        feed(judge, seeds)
    except BaseException:  # noqa: BLE001 - a child must not go on as its parent
        traceback.print_exc()
    finally:
        forget_scratch()
        os._exit(1)


def _error_text(error: BaseException) -> str:
    """Return the class, the place in riffle_spark, and the text of an error."""
    package = f"{CHECKOUT}/riffle_spark/"
    ours = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(package)]
    place = f"{ours[-1].filename.removeprefix(package)}:{ours[-1].lineno}" if ours else "?"
    return f"{type(error).__name__} at {place}: {str(error)[:120]!r}"


if __name__ == "__main__":
    sys.exit(main())
