"""``./run house``: the numbers of the house, each with its limit; ``--draw`` draws its pictures into the docs."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.house.changes import disagreements
from tests.house.imports import Product, cycles, read_product
from tests.house.picture import drawn, placed_in
from tests.house.walks import assignment_names, batch_walk, wrong_steps
from tests.house.words import glossary_words, unknown_names
from tests.kit.folders import CHECKOUT

__all__ = ["Figure", "figures", "main"]

PAGE = "docs/architecture.md"


class Figure(NamedTuple):
    """One number of the house, the most that it may be (``None``: whatever it is), and what makes it too large."""

    name: str
    value: float
    most: float | None
    because: list[str]

    def __str__(self) -> str:
        limit = "" if self.most is None else f"  (at most {self.most:g})"
        return f"{self.name:.<52} {self.value:g}{limit}"

    @property
    def is_over(self) -> bool:
        """Whether the limit is broken."""
        return self.most is not None and self.value > self.most


def figures(checkout: Path) -> Iterator[Figure]:
    """Measure the house below a checkout."""
    product = read_product(checkout)
    yield from _sizes(product)
    yield from _words(product, checkout)
    rooms, names, climbs = batch_walk(product)
    yield Figure("rooms that a batch's rows go through", len(rooms), 9, rooms)
    yield Figure("names for a batch's rows on their way", len(names), 20, names)
    yield Figure("climbs of that way, to a room that is further up", climbs, None, [])
    gone = list(wrong_steps(product))
    yield Figure("steps of that way that are not the code's", len(gone), 0, gone)
    met = assignment_names(product)
    yield Figure("names of parameters from View to Assignment", len(met), 70, met)
    wrong = disagreements(product, checkout)
    yield Figure("changes of which imports say otherwise", len(wrong), 0, wrong)


def _sizes(product: Product) -> Iterator[Figure]:
    lines = {name: module.lines for name, module in product.modules.items()}
    rooms = {room or "riffle_spark": len(files) for room, files in product.rooms.items()}
    yield Figure("files", len(lines), None, [])
    yield Figure("lines of the median file", statistics.median(lines.values()), None, [])
    yield _largest("lines of the largest file", lines, 350)
    yield Figure("rooms", len(rooms), None, [])
    yield _largest("files of the largest room", rooms, 16)
    beside = product.beside()
    yield Figure("files with a single importer beside them", len(beside), 25, beside)
    yield Figure("file names that stand twice", len(product.twice()), 0, product.twice())
    yield Figure("cycles of files", len(found := cycles(product.graph)), 0, [" ".join(one) for one in found])
    yield Figure("cycles of rooms", len(found := cycles(product.room_graph)), 0, [" ".join(one) for one in found])
    everything = [*product.modules.values(), *product.inits.values()]
    share = 100 * sum(one.import_lines for one in everything) / sum(one.lines for one in everything)
    yield Figure("import lines, % of all lines", round(share, 2), 6, [])


def _largest(name: str, sizes: dict[str, int], most: int) -> Figure:
    return Figure(name, max(sizes.values()), most, [one for one, size in sizes.items() if size > most])


def _words(product: Product, checkout: Path) -> Iterator[Figure]:
    unknown = unknown_names(product, glossary_words(checkout / "docs" / "glossary.md"))
    told = [f"{name} ({', '.join(words)})" for name, words in unknown.items()]
    yield Figure("names of files, rooms and classes in no glossary", len(unknown), 0, told)


def main(arguments: list[str]) -> int:
    """Print the numbers, and what breaks a limit; return how many are broken."""
    if "--draw" in arguments:
        page = CHECKOUT / PAGE
        page.write_text(placed_in(page.read_text(), drawn(read_product(CHECKOUT))))
    broken = 0
    for figure in figures(CHECKOUT):
        print(figure)
        if figure.is_over:
            broken += 1
            print(*(f"    {one}" for one in figure.because), sep="\n")
    return broken


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 1))
