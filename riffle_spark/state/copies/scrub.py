"""A look at what lies in a member's folder, some bytes at a time, beside the batches. Knows stacks, not heads.

What a process has checked it does not check again while the file's signature is the same; a disk that forgets bytes by
itself changes no signature. So parts are read anew in turn, and a stack with a damaged one is dropped before it is
needed.
"""

from itertools import chain

from riffle_spark.state.copies.folder import Folder
from riffle_spark.state.copies.part_files import PartFiles
from riffle_spark.state.log.manifest import Address

__all__ = ["scrub"]

SCRUBBED_BYTES = 8 << 20
_next: dict[str, Address] = {}
"""By folder, from which key-group on to look next."""


def scrub(folder: Folder, size_bytes: int = SCRUBBED_BYTES) -> list[Address]:
    """Check about so many bytes of a member's stacks, one key-group in any case, from where the last look ended; return
    the key-groups that were dropped.
    """
    addresses = [(store, kg) for store in folder.stores_of_columns() for kg in folder.stacks(store).key_groups()]
    begin = _next.get(str(folder.path), ("", 0))
    turn = chain((one for one in addresses if one >= begin), (one for one in addresses if one < begin))
    files, dropped = PartFiles(folder.path), []
    for address in turn:
        if size_bytes <= 0:
            _next[str(folder.path)] = address
            break
        stack = folder.stacks(address[0]).read(address[1])
        if stack is not None:
            size_bytes -= stack.size_bytes
            if not all(map(files.check, stack.parts)):
                folder.drop(*address)
                dropped.append(address)
    return dropped
