"""Makes arrays from rules; an export uses rules to describe a step's initial values. Needs only numpy.

The export and its replay make the same bits. Random numbers come from exact arithmetic on the raw 64-bit words of
numpy's Philox, whose stream numpy guarantees (NEP 19), not from numpy's distributions, which may change.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Rule = Mapping[str, Any]
# Number of random words made at a time: 64 MB of temporaries.
_CHUNK = 1 << 23


def make(
    rule: Rule,
    shape: Sequence[int],
    dtype: str,
    stored: Mapping[str, np.ndarray],
    replica: int = 0,
    group: int = 0,
) -> np.ndarray:
    """Returns the array that `rule` describes, for one replica.

    Args:
      rule: one of these. {"rule": "constant", "value"}: every element is the value. {"rule": "uniform", "low", "high",
        "key"}: low + (high - low) * u in float64, where u is the upper 53 bits of a word. {"rule": "integers", "low",
        "high", "key"}: low + word modulo (high - low), so `high` is excluded. {"rule": "stored", "name"}: an array
        from `stored`. {"rule": "replica"}: the replica's number. `key` is Philox's key; the words fill the array in C
        order. With "shared": False, groups have different arrays: the group's number is added to the upper half of the
        key's last word, and group g takes element g modulo the length of a stored array.
      shape, dtype: of the array; values are rounded to the dtype at the end.
      stored: the arrays that no rule makes.
      replica: the replica's number.
      group: number of the replica's group, which shares its examples; without partitions, the replica's number.

    Raises ValueError if the rule is unknown, or the stored array has another shape.
    """
    kind = rule["rule"]
    if kind == "constant":
        return np.full(shape, rule["value"], dtype)
    if kind == "replica":
        return np.full(shape, replica, dtype)
    per_replica = not rule.get("shared", True)
    if kind == "stored":
        array = np.asarray(stored[rule["name"]], dtype)
        array = array[group % len(array)] if per_replica else array
        if list(array.shape) != list(shape):
            raise ValueError(f"{rule['name']}: stored as {array.shape}, {tuple(shape)} expected")
        return array
    if kind not in ("uniform", "integers"):
        raise ValueError(f"unknown rule {kind!r}: written by a newer version?")
    flat = np.empty(math.prod(shape), dtype)
    key = [*rule["key"][:-1], rule["key"][-1] + (group << 32)] if per_replica else rule["key"]
    words = np.random.Philox(key=key)
    for start in range(0, flat.size, _CHUNK):
        part = flat[start : start + _CHUNK]
        part[:] = _values(rule, words.random_raw(part.size))
    return flat.reshape(shape)


def _values(rule: Rule, words: np.ndarray) -> np.ndarray:
    low, high = rule["low"], rule["high"]
    if rule["rule"] == "integers":
        return low + (words % np.uint64(high - low)).astype(np.int64)
    return low + (high - low) * ((words >> np.uint64(11)) * 2.0**-53)


def key_of(name: str) -> int:
    """Returns the Philox key for a name."""
    return zlib.crc32(name.encode())


def digest(array: np.ndarray, key: int) -> dict[str, float]:
    """Returns two numbers that distinguish arrays: the norm, and the projection on a seeded vector in [-1, 1)."""
    flat = np.asarray(array, np.float64).ravel()
    rule = {"rule": "uniform", "low": -1.0, "high": 1.0, "key": key}
    direction = make(rule, [flat.size], "float64", {})
    return {"norm": float(np.linalg.norm(flat)), "projection": float(flat @ direction)}


def distance(actual: Mapping[str, float], expected: Mapping[str, float]) -> float:
    """Returns the distance between two digests relative to the array's norm; nan if anything is not finite."""
    gaps = [abs(actual[name] - expected[name]) for name in ("norm", "projection")]
    if not all(map(math.isfinite, gaps)):
        return math.nan
    return max(gaps) / (expected["norm"] or 1.0)
