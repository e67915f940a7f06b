"""``./run fuzz``: hostile inputs for every decoder, each in a child of bounded memory that is watched."""

from __future__ import annotations

import argparse
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
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

import pyarrow as pa

from riffle_spark.errors import RiffleError
from tests.kit.fuzz.decoders import DECODERS, Decoder, forget_scratch
from tests.kit.fuzz.mutations import mutated

HANG_SECONDS = 10.0
"""Of the processor's time that one input may take."""
MEMORY_BYTES = 1 << 30
"""That a decoder may take beside what its process has to begin with."""
_FINDINGS_MOST = 8
_INPUT_MOST = 1 << 20
_HEADER = struct.Struct("<qq")
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Outcome:
    """What became of one decoder's inputs."""

    decoder: str
    inputs: int = 0
    refused: int = 0
    findings: list[str] = field(default_factory=list)
    kept: list[bytes] = field(default_factory=list)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; return 1 if a decoder did what it must not."""
    parser = argparse.ArgumentParser("./run fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000, help="of all decoders together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--decoder", action="append", choices=list(DECODERS), help="this one only; may be repeated")
    parser.add_argument("--replay", type=Path, help="give this file's bytes to the one decoder that is named")
    parser.add_argument("--keep", type=Path, default=Path("fuzz-findings"), help="the folder for inputs that did harm")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args(arguments)
    chosen = [DECODERS[name] for name in asked.decoder or DECODERS]
    if asked.replay:
        for decoder in chosen:
            decoder.decode(asked.replay.read_bytes())
        return 0
    began, seeds = time.monotonic(), {decoder.name: decoder.seeds() for decoder in chosen}
    outcomes = []
    for number, decoder in enumerate(chosen):
        count = asked.inputs * (number + 1) // len(chosen) - asked.inputs * number // len(chosen)
        outcomes.append(fuzzed(decoder, seeds, count, asked.seed))
        _keep(outcomes[-1], asked.keep)
        if not asked.json:
            print(_line(outcomes[-1]), flush=True)
    told = {
        "inputs": sum(each.inputs for each in outcomes), "seed": asked.seed, "decoders": len(outcomes),
        "refused": sum(each.refused for each in outcomes), "findings": [f for each in outcomes for f in each.findings],
        "seconds": round(time.monotonic() - began, 1), "by_decoder": {each.decoder: each.inputs for each in outcomes},
    }  # fmt: skip
    print(
        json.dumps(told)
        if asked.json
        else f"{told['inputs']} inputs in {told['seconds']} s, {len(told['findings'])} findings"
    )
    return 1 if told["findings"] else 0


def _line(outcome: Outcome) -> str:
    head = f"{outcome.decoder:<20}{outcome.inputs:>10} inputs{outcome.refused:>10} refused"
    return "\n".join([head, *(f"  {finding}" for finding in outcome.findings)])


def _keep(outcome: Outcome, folder: Path) -> None:
    for number, data in enumerate(outcome.kept):
        folder.mkdir(exist_ok=True)
        path = folder / f"{outcome.decoder.replace(' ', '-')}-{zlib.crc32(data):08x}"
        path.write_bytes(data)
        outcome.findings[number] += f"\n    ./run fuzz --decoder '{outcome.decoder}' --replay {path}"


def fuzzed(decoder: Decoder, seeds: dict[str, list[bytes]], count: int, seed: int) -> Outcome:
    """Give a decoder so many inputs, in child after child where one dies."""
    outcome, first = Outcome(decoder.name), 0
    with mmap.mmap(-1, _HEADER.size + _INPUT_MOST) as board:
        while first < count and len(outcome.findings) < _FINDINGS_MOST:
            first = _child_ran(decoder, seeds, range(first, count), seed, board, outcome)
    outcome.inputs = first
    return outcome


def _child_ran(
    decoder: Decoder, seeds: dict[str, list[bytes]], numbers: range, seed: int, board: mmap.mmap, outcome: Outcome
) -> int:
    """Run a child until it ends or hangs; return the number of the next input."""
    _HEADER.pack_into(board, 0, numbers.start, 0)
    with tempfile.TemporaryFile("w+") as report:
        child = os.fork()
        if child == 0:
            _work(decoder, seeds, numbers, seed, board, report)
        hung = _watched(child, board)
        _, status = os.waitpid(child, 0)
        report.seek(0)
        lines = report.read().splitlines()
    at, length = _HEADER.unpack_from(board, 0)
    told = [json.loads(line) for line in lines]
    outcome.refused += sum(each["refused"] for each in told if "refused" in each)
    for each in told:
        if "finding" in each:
            outcome.findings.append(each["finding"])
            outcome.kept.append(bytes.fromhex(each["input"]))
    if hung or status:
        said = f"hung for {HANG_SECONDS:g} s" if hung else f"ended its process: {_ending(status)}"
        outcome.findings.append(f"{decoder.name}, input {at} of seed {seed}: {said}")
        outcome.kept.append(board[_HEADER.size : _HEADER.size + min(length, _INPUT_MOST)])
        return int(at) + 1
    return numbers.stop if not told or "finding" not in told[-1] else int(at) + 1


def _ending(status: int) -> str:
    return signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else f"status {os.WEXITSTATUS(status)}"


def _watched(child: int, board: mmap.mmap) -> bool:
    """Wait for a child; end it if one input takes too much of the processor's time, and tell so."""
    seen, since = -1, 0.0
    while os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        at, used = _HEADER.unpack_from(board, 0)[0], _processor_seconds(child)
        if at != seen:
            seen, since = at, used
        elif used - since > HANG_SECONDS:
            os.kill(child, signal.SIGKILL)
            return True
        time.sleep(0.02)
    return False


def _processor_seconds(process: int) -> float:
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _work(
    decoder: Decoder, seeds: dict[str, list[bytes]], numbers: range, seed: int, board: mmap.mmap, report: TextIO
) -> None:
    """Be the child: never returns."""
    status = 1
    try:
        pa.set_memory_pool(pa.system_memory_pool())
        pa.set_cpu_count(1)
        own = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (own + MEMORY_BYTES, own + MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        _decode_all(decoder, seeds, numbers, seed, board, report)
        status = 0
    except BaseException:  # noqa: BLE001 - a child must not go on as its parent
        traceback.print_exc()
    finally:
        forget_scratch()
        os._exit(status)


def _decode_all(
    decoder: Decoder, seeds: dict[str, list[bytes]], numbers: range, seed: int, board: mmap.mmap, report: TextIO
) -> None:
    own = seeds[decoder.name]
    others = [data for of in seeds.values() for data in of[:3]]
    refused, found = 0, set[str]()
    for number in numbers:
        chance = random.Random(f"{seed}/{decoder.name}/{number}")
        data = own[number] if number < len(own) else mutated(chance, own, others)
        _HEADER.pack_into(board, 0, number, len(data))
        board[_HEADER.size : _HEADER.size + min(len(data), _INPUT_MOST)] = data[:_INPUT_MOST]
        try:
            decoder.decode(data)
        except RiffleError:
            refused += 1
        except BaseException as error:  # noqa: BLE001 - that is what is looked for
            said = _said(error)
            if said not in found:
                found.add(said)
                told = f"{decoder.name}, input {number} of seed {seed}: {said}"
                report.write(json.dumps({"finding": told, "input": data.hex()}) + "\n")
                report.flush()
            if len(found) >= _FINDINGS_MOST:
                break
    report.write(json.dumps({"refused": refused}) + "\n")
    report.flush()


def _said(error: BaseException) -> str:
    """Return which error came from where."""
    ours = [frame for frame in traceback.extract_tb(error.__traceback__) if "/riffle_spark/" in frame.filename]
    place = f"{ours[-1].filename.rpartition('/riffle_spark/')[2]}:{ours[-1].lineno}" if ours else "?"
    return f"{type(error).__name__} at {place}: {str(error)[:120]!r}"


if __name__ == "__main__":
    sys.exit(main())
