"""The rooms and what they import, as a picture in a page."""

from __future__ import annotations

from collections.abc import Mapping

from tests.house.imports import Product

__all__ = ["BEGIN", "END", "drawn", "placed_in"]

BEGIN = "<!-- begin: made by `./run house --draw` -->"
END = "<!-- end -->"


def drawn(product: Product) -> str:
    """Return a Mermaid graph of the rooms with files and lines; an arrow that follows from others is left out."""
    graph = {room: targets for room, targets in product.room_graph.items() if room in product.rooms}
    between = {room: {target for target in targets if target in graph} for room, targets in graph.items()}
    lines = ["```mermaid", "graph TD"]
    lines += [f'    {_id(room)}["{room}<br/>{_size(product, room)}"]' for room in sorted(graph)]
    for room, targets in sorted(_reduced(between).items()):
        lines += [f"    {_id(room)} --> {_id(target)}" for target in sorted(targets)]
    return "\n".join([*lines, "```"])


def placed_in(page: str, picture: str) -> str:
    """Return a page's text with what stands between the two marks replaced by the picture."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{picture}\n{END}{after}"


def _id(room: str) -> str:
    return room.replace(".", "_")


def _size(product: Product, room: str) -> str:
    return f"{len(product.rooms[room])} files"


def _reduced(graph: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Return the graph without arrows that a longer way makes."""
    below = {room: _below(graph, room) for room in graph}
    return {
        room: {t for t in targets if not any(t in below[other] for other in targets if other != t)}
        for room, targets in graph.items()
    }


def _below(graph: Mapping[str, set[str]], room: str) -> set[str]:
    direct = graph.get(room, set())
    return direct.union(*(_below(graph, one) for one in direct))
