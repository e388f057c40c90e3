"""Whether TFRecord files hold as many records as the configuration says, before a run starts.

A file that was cut off between two records reads like a whole one: only the numbers tell.
"""

from __future__ import annotations

import concurrent.futures
from collections.abc import Sequence

from common import records
from common.errors import UserError

_THREADS = 16  # A header costs a disk one short read; so many are asked for at once.


def check(files: Sequence[str], expected: int, field: str) -> None:
    """Counts the records of `files` from header to header; in an object store, where that costs reading them, not.

    Args:
      files: of one split.
      expected: how many there should be in all.
      field: of the configuration, which says so.

    Raises:
      UserError: there are others; the message names the file with the fewest. Or a file ends inside a record.
    """
    if "://" in files[0]:
        return
    with concurrent.futures.ThreadPoolExecutor(_THREADS) as threads:
        counts = list(threads.map(records.count, files))
    found = sum(counts)
    if found == expected:
        return
    fewest = min(range(len(files)), key=counts.__getitem__)
    missing = "was a file lost?"
    if counts[fewest] < max(counts):
        missing = f"was it cut off? It has {counts[fewest]}, others up to {max(counts)}"
    raise UserError(
        f"{files[fewest]}: {len(files)} such files hold {found} records, config.{field} is {expected}; {missing}; give "
        f"all of them whole, or --config.{field}={found}"
    )
