"""Damages checkpoints as an attacker would: seeded mutations, and the pieces for making them.

A member of an archive is (name, content). An archive can be written with false names and sizes.
"""

from __future__ import annotations

import io
import json
import random
import struct
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Member = tuple[str, bytes]
EVIL = "evil_plugin"  # A module placed where a command starts; it must never be imported.
HUGE = 10**12
NAMES = (
    "../escaped",
    "/tmp/escaped",
    "a/../../escaped",
    "..",
    ".",
    "",
    "C:\\escaped",
    "a\\b",
    "con",
    "nul.txt",
    "a\0b",
    "timetotrain.json",
    "x" * 300,
    "\x1b[31mred",
    "-rf",
    "~root",
    "a\nb",
    "\ud800",
)
VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1,
    2**31,
    2**63,
    HUGE,
    -HUGE,
    1.5,
    float("nan"),
    float("inf"),
    "",
    "x",
    "../x",
    "/etc/passwd",
    f"{EVIL}:make",
    f"{EVIL}.inner:make",
    "os:system",
    EVIL,
    [],
    [HUGE],
    {},
    {"a": 1},
    [[]],
    "9" * 400,
    "a" * 100_000,
    "resnet",
    "gnmt",
    "transformer",
    "mlp",
    "lstm",
    "cnn",
    "fp64",
    "bf16",
    "open",
    "horovod",
    "pjrt",
    "1e400",
)


def members(path: Path) -> list[Member]:
    """Returns the members of an .npz file."""
    with zipfile.ZipFile(path) as archive:
        return [(name, archive.read(name)) for name in archive.namelist()]


def write(path: Path, parts: Sequence[Member], compression: int = zipfile.ZIP_STORED) -> None:
    """Writes members as they are, even with duplicate names."""
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in parts:
            with _no_warning():
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


def meta(parts: Sequence[Member]) -> dict[str, Any]:
    """Returns the description from a checkpoint's members."""
    content = dict(parts)["meta.npy"]
    return json.loads(np.lib.format.read_array(io.BytesIO(content)).tobytes())


def with_meta(parts: Sequence[Member], values: Any) -> list[Member]:
    """Returns the members with another description: plain values, or a raw text."""
    text = values if isinstance(values, str) else json.dumps(values)
    made = array(np.frombuffer(text.encode(errors="surrogatepass"), np.uint8))
    return [(name, made if name == "meta.npy" else content) for name, content in parts]


def mutate_values(values: Any, rng: random.Random) -> Any:
    """Changes one random place of plain values in place; returns them."""
    if not values:
        return values
    place, key = random_place(values, rng, 0.8)
    kind = rng.random()
    if kind < 0.75:
        place[key] = rng.choice(VALUES)
    elif kind < 0.85:
        del place[key]
    elif isinstance(place, dict):
        place[rng.choice(("evil", "../x", EVIL, "__class__", str(key) + "x"))] = place.pop(key)
    return values


def random_place(values: Any, rng: random.Random, deeper: float) -> tuple[Any, Any]:
    """Returns (object or list, key) of a random place in plain values, which are not empty.

    `deeper` is the probability of a place inside of a chosen object or list, in place of the object or list itself.
    """
    place = values
    while True:
        key = rng.choice(list(place) if isinstance(place, dict) else list(range(len(place))))
        inner = place[key]
        if not (isinstance(inner, dict | list) and inner and rng.random() < deeper):
            return place, key
        place = inner


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


def mutate_checkpoint(source: Path, target: Path, rng: random.Random) -> str:
    """Writes a mutated copy of a checkpoint; returns the mutation's name."""
    parts = members(source)
    kinds: dict[str, Callable[[], None]] = {
        "bytes": lambda: _put(target, mutate_bytes(source.read_bytes(), rng)),
        "meta": lambda: write(target, with_meta(parts, mutate_values(meta(parts), rng))),
        "nested meta": lambda: write(target, with_meta(parts, "[" * rng.choice((10, 1000, 200_000)))),
        "asset name": lambda: write(
            target, [*parts, (_asset(rng.choice(NAMES)), array(np.zeros(3, np.uint8)))]
        ),
        "member twice": lambda: write(target, [*parts, rng.choice(parts)]),
        "member lost": lambda: write(target, _without(parts, rng)),
        "shape": lambda: write(
            target, _changed(parts, rng, lambda _: header(_shape(rng), rng.choice(("<f4", "|u1"))))
        ),
        "kind": lambda: write(target, _changed(parts, rng, lambda _: array(_value(rng)))),
        "pickle": lambda: write(target, _changed(parts, rng, lambda _: array(np.array([Pickled()], object)))),
        "member bytes": lambda: write(target, _changed(parts, rng, lambda data: mutate_bytes(data, rng))),
        "bomb": lambda: write(target, _changed(parts, rng, lambda _: _bomb(rng)), zipfile.ZIP_DEFLATED),
        "lie of size": lambda: _put(target, _lied(source.read_bytes(), rng)),
        "member name": lambda: write(target, _renamed(parts, rng)),
    }
    name = rng.choice((*kinds, *["meta"] * 8))
    kinds[name]()
    return name


class Pickled:
    """An object whose pickle imports and calls something."""

    def __reduce__(self) -> tuple:
        return __import__, (EVIL,)


def _put(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def _asset(name: str) -> str:
    return f"assets/{name.encode(errors='replace').decode()}.npy"


def _without(parts: list[Member], rng: random.Random) -> list[Member]:
    lost = rng.randrange(len(parts))
    return [*parts[:lost], *parts[lost + 1 :]]


def _changed(parts: list[Member], rng: random.Random, change: Callable[[bytes], bytes]) -> list[Member]:
    at = rng.randrange(len(parts))
    return [(name, change(data) if i == at else data) for i, (name, data) in enumerate(parts)]


def _renamed(parts: list[Member], rng: random.Random) -> list[Member]:
    at = rng.randrange(len(parts))
    new = rng.choice((*NAMES[:6], "weights/x", "moments/x/mean", "carried/x/y", f"{EVIL}.py"))
    return [(f"{new}.npy" if i == at else name, data) for i, (name, data) in enumerate(parts)]


def _shape(rng: random.Random) -> tuple[int, ...]:
    return rng.choice(((HUGE,), (10**6, 10**6), (2**62, 4), (-1,), (0, HUGE), (1,) * 40, ()))


def _value(rng: random.Random) -> Any:
    return rng.choice(
        (
            np.zeros([2, 3]),
            np.array("text"),
            np.array([True]),
            np.array(1j),
            np.full([64, 8], np.nan, np.float32),
        )
    )


def _bomb(rng: random.Random) -> bytes:
    size = rng.choice((1 << 28, 1 << 29))
    return header([size], "|u1", bytes(size)) if rng.random() < 0.5 else bytes(size)


def _lied(data: bytes, rng: random.Random) -> bytes:
    """Changes a size in the archive's directory: a member's unpacked or packed size."""
    places = [i for i in range(len(data) - 46) if data[i : i + 4] == b"PK\x01\x02"]
    at = rng.choice(places) + rng.choice((20, 24, 42))
    return data[:at] + struct.pack("<I", rng.choice((0, 1, 2**31, 2**32 - 2))) + data[at + 4 :]


def _no_warning() -> Any:
    import warnings

    caught = warnings.catch_warnings()
    warnings.simplefilter("ignore")
    return caught
