"""Number the distinct keys of a batch by first appearance. Knows encoded keys. Does not know columns or state."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from riffle_spark.process.folding import first_rows

__all__ = ["group_keys"]


def group_keys(encoded: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return per row the number of its key, and per key the index of its first row.

    ``encoded`` holds keys as bytes, without nulls. Keys are numbered from 0 in the order of their first rows, so the
    second result ascends. Takes one pass of hashing and no sort.
    """
    assert encoded.null_count == 0
    numbered = pc.dictionary_encode(encoded)
    codes = numbered.indices.to_numpy().astype(np.int64)
    return codes, first_rows(codes, len(numbered.dictionary))
