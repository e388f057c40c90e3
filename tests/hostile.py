"""Pieces of damaged archives, and seeded mutations of bytes and plain values, for tests that act as an attacker would.

A member of an archive is (name, content). An archive can be written with false names and sizes.
"""

import copy
import io
import json
import random
import struct
import warnings
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

Member = tuple[str, bytes]
EVIL = "evil_plugin"  # A module placed where a command starts; it must never be imported.
HUGE = 10**12
VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2**31, 2**63, HUGE, -HUGE, 1.5, float("nan"), float("inf"), "", "x", "../x",
    "/etc/passwd", f"{EVIL}:make", f"{EVIL}.inner:make", "os:system", EVIL, [], [HUGE], {}, {"a": 1},
    [[]], "9" * 400, "a" * 100_000, "resnet", "gnmt", "transformer", "mlp", "lstm", "cnn", "fp64", "bf16",
    "open", "horovod", "pjrt", "1e400",
)  # fmt: skip


def members(path: Path) -> list[Member]:
    """Returns the members of an .npz file."""
    with zipfile.ZipFile(path) as archive:
        return [(name, archive.read(name)) for name in archive.namelist()]


def write(path: Path, members: Sequence[Member], compression: int = zipfile.ZIP_STORED) -> None:
    """Writes members as they are, even with duplicate names."""
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members:
            with warnings.catch_warnings(action="ignore"):
                archive.writestr(zipfile.ZipInfo(name), content, compression)


def array(values: Any) -> bytes:
    """Returns the content of a member that holds an array."""
    out = io.BytesIO()
    np.lib.format.write_array(out, np.asarray(values), allow_pickle=True)
    return out.getvalue()


def header(shape: Sequence[int], descr: str = "<f4", content: bytes = b"") -> bytes:
    """Returns a member whose header claims `shape`, whatever its content."""
    text = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {tuple(shape)!r}, }}"
    text = text.ljust(118 - 10 - 1) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode() + content


def meta(members: Sequence[Member]) -> dict[str, Any]:
    """Returns the description from a checkpoint's members."""
    content = dict(members)["meta.npy"]
    return json.loads(np.lib.format.read_array(io.BytesIO(content)).tobytes())


def with_meta(members: Sequence[Member], values: Any) -> list[Member]:
    """Returns the members with another description: plain values, or a raw text."""
    text = values if isinstance(values, str) else json.dumps(values)
    description = array(np.frombuffer(text.encode(errors="surrogatepass"), np.uint8))
    return [(name, description if name == "meta.npy" else content) for name, content in members]


def mutate_values(values: Any, rng: random.Random, others: Sequence[Any] = VALUES) -> Any:
    """Changes one random place of plain values in place: another value, none, or twice; returns them."""
    if not values:
        return values
    place = values
    while True:
        key = rng.choice(list(place) if isinstance(place, dict) else list(range(len(place))))
        inner = place[key]
        if not (isinstance(inner, dict | list) and inner and rng.random() < 0.8):
            break
        place = inner
    kind = rng.random()
    if kind < 0.75:
        place[key] = copy.deepcopy(rng.choice(others))
    elif kind < 0.85:
        del place[key]
    elif isinstance(place, dict):
        place[rng.choice(("evil", "../x", EVIL, "__class__", str(key) + "x"))] = place.pop(key)
    else:
        place.insert(key, copy.deepcopy(place[key]))
    return values


def mutate_bytes(data: bytes, rng: random.Random) -> bytes:
    """Cuts, flips, repeats, blanks or moves a piece of bytes."""
    kind, at = rng.randrange(5), rng.randrange(len(data))
    size = rng.choice((1, 1, 4, 64, 1000))
    if kind == 0:
        return data[:at]
    if kind == 1:
        return data[:at] + bytes(rng.randrange(256) for _ in data[at : at + size]) + data[at + size :]
    if kind == 2:
        return data[: at + size] + data[at:]
    if kind == 3:
        return data[:at] + b"\xff" * len(data[at : at + size]) + data[at + size :]
    other = rng.randrange(len(data))
    return data[:at] + data[other : other + size] + data[at + size :]


class Pickled:
    """An object whose pickle imports and calls something."""

    def __reduce__(self) -> tuple:
        return __import__, (EVIL,)
