"""Yields a seed for each of a network's layers or weights."""

from collections.abc import Iterator

import numpy as np


def seeds(seed: int) -> Iterator[int]:
    """Yields independent seeds without end, in [0, 2^31)."""
    parent = np.random.SeedSequence(seed)
    while True:
        (child,) = parent.spawn(1)
        yield int(child.generate_state(1)[0] >> 1)
