"""``./run fuzz --guided``: atheris (libFuzzer) makes the inputs, guided by the coverage of riffle_spark.

The judge catches the errors of each input, so libFuzzer sees no finding and continues.
"""

from __future__ import annotations

import contextlib
import io
import random
import sys
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import atheris  # type: ignore[import-untyped] # not in the pinned environment

# Coverage is counted only in modules of riffle_spark that are imported in this block.
with atheris.instrument_imports(include=["riffle_spark"]), contextlib.redirect_stderr(io.StringIO()):
    import riffle_spark.state.objects.s3  # noqa: F401 - otherwise the first S3 URL imports it
    from tests.kit.fuzz.__main__ import main, others_in
    from tests.kit.fuzz.mutations import varied

if TYPE_CHECKING:
    from tests.kit.fuzz.__main__ import Feed, InputRunner, Seeds

_SMALLEST_LIMIT = 4096
_OWN_SIGNALS = ("abrt", "bus", "fpe", "ill", "int", "segv", "term", "usr1", "usr2", "xfsz")
_NEVER_SECONDS = 1_000_000
# The watcher has other limits, and reports the signal that ended a child. A limit of 0 s does not mean "none": with it,
# atheris ends the process at the next tick of its clock.
# atheris ends the process at a tick of its clock.
_LEFT_TO_THE_WATCHER = [
    f"-timeout={_NEVER_SECONDS}",
    f"-report_slow_units={_NEVER_SECONDS}",
    "-rss_limit_mb=0",
    "-malloc_limit_mb=0",
    "-detect_leaks=0",
    *(f"-handle_{name}=0" for name in _OWN_SIGNALS),
]


def led(folder: Path) -> Feed:
    """Return a feed in which libFuzzer makes the inputs.

    It stores inputs with new coverage in ``folder``, and the next child starts with these.
    """

    def feed(judge: InputRunner, seeds: Seeds) -> None:
        own_seeds = seeds[judge.decoder.name]
        inputs_folder = folder / judge.decoder.name.replace(" ", "-")
        inputs_folder.mkdir(exist_ok=True)
        for number, data in enumerate(own_seeds):
            (inputs_folder / f"real-{number}").write_bytes(data)
        longest = max(_SMALLEST_LIMIT, 2 * max(map(len, own_seeds)))
        chance = zlib.crc32(f"{judge.seed}/{judge.decoder.name}/{judge.numbers.start}".encode()) or 1
        limits = [f"-seed={chance}", f"-max_len={longest}", f"-artifact_prefix={folder}/"]
        arguments = ["fuzz", "-runs=-1", *limits, *_LEFT_TO_THE_WATCHER, str(inputs_folder)]
        atheris.Setup(arguments, judge, custom_mutator=_mutator(judge, seeds))
        atheris.Fuzz()

    return feed


def _mutator(judge: InputRunner, seeds: Seeds) -> Callable[[bytes, int, int], bytes]:
    own_seeds = seeds[judge.decoder.name]
    other_seeds = others_in(seeds)
    sealed = judge.decoder.sealed

    def mutate(data: bytes, size_max: int, number: int) -> bytes:
        chance = random.Random(number)
        return varied(
            chance, data, (own_seeds, other_seeds), lambda chunk: atheris.Mutate(chunk[:size_max], size_max), sealed
        )[:size_max]

    return mutate


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="riffle-fuzz-") as folder:
        sys.exit(main(guided=led(Path(folder))))
