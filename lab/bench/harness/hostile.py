"""Damages checkpoints and exports as an attacker would: seeded mutations, and the pieces for making them.

A member of an archive is (name, content). An archive can be written with false names and sizes.
"""

import contextlib
import copy
import io
import json
import os
import random
import shutil
import struct
import warnings
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Member = tuple[str, bytes]
EVIL = "evil_plugin"  # A module placed where a command starts; it must never be imported.
HUGE = 10**12
NAMES = (
    "../escaped", "/tmp/escaped", "a/../../escaped", "..", ".", "", "C:\\escaped", "a\\b", "con",
    "nul.txt", "a\0b", "timetotrain.json", "x" * 300, "\x1b[31mred", "-rf", "~root", "a\nb", "\ud800",
)  # fmt: skip
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


def mutate_checkpoint(source: Path, target: Path, rng: random.Random) -> str:
    """Writes a mutated copy of a checkpoint; returns the mutation's name."""
    content = members(source)
    every = lambda change, *how: write(target, _changed(content, rng, change), *how)  # noqa: E731
    kinds: dict[str, Callable[[], Any]] = {
        "bytes": lambda: target.write_bytes(mutate_bytes(source.read_bytes(), rng)),
        "meta": lambda: write(target, with_meta(content, mutate_values(meta(content), rng))),
        "nested meta": lambda: write(target, with_meta(content, "[" * rng.choice((10, 1000, 200_000)))),
        "asset name": lambda: write(
            target, [*content, (_asset(rng.choice(NAMES)), array(np.zeros(3, np.uint8)))]
        ),
        "member twice": lambda: write(target, [*content, rng.choice(content)]),
        "member lost": lambda: write(target, _without(content, rng)),
        "shape": lambda: every(lambda _: header(_shape(rng), rng.choice(("<f4", "|u1")))),
        "kind": lambda: every(lambda _: array(_value(rng))),
        "pickle": lambda: every(lambda _: array(np.array([Pickled()], object))),
        "member bytes": lambda: every(lambda data: mutate_bytes(data, rng)),
        "bomb": lambda: every(lambda _: _bomb(rng), zipfile.ZIP_DEFLATED),
        "lie of size": lambda: target.write_bytes(_lied(source.read_bytes(), rng)),
        "member name": lambda: write(target, _renamed(content, rng)),
    }
    name = rng.choice((*kinds, *["meta"] * 8))
    kinds[name]()
    return name


class Pickled:
    """An object whose pickle imports and calls something."""

    def __reduce__(self) -> tuple:
        return __import__, (EVIL,)


def _asset(name: str) -> str:
    return f"assets/{name.encode(errors='replace').decode()}.npy"


def _without(members: list[Member], rng: random.Random) -> list[Member]:
    lost = rng.randrange(len(members))
    return [*members[:lost], *members[lost + 1 :]]


def _changed(members: list[Member], rng: random.Random, change: Callable[[bytes], bytes]) -> list[Member]:
    at = rng.randrange(len(members))
    return [(name, change(data) if i == at else data) for i, (name, data) in enumerate(members)]


def _renamed(members: list[Member], rng: random.Random) -> list[Member]:
    at = rng.randrange(len(members))
    new = rng.choice((*NAMES[:6], "weights/x", "moments/x/mean", "carried/x/y", f"{EVIL}.py"))
    return [(f"{new}.npy" if i == at else name, data) for i, (name, data) in enumerate(members)]


def _shape(rng: random.Random) -> tuple[int, ...]:
    return rng.choice(((HUGE,), (10**6, 10**6), (2**62, 4), (-1,), (0, HUGE), (1,) * 40, ()))


def _value(rng: random.Random) -> Any:
    nan = np.full([64, 8], np.nan, np.float32)
    return rng.choice((np.zeros([2, 3]), np.array("text"), np.array([True]), np.array(1j), nan))


def _bomb(rng: random.Random) -> bytes:
    size = rng.choice((1 << 28, 1 << 29))
    return header([size], "|u1", bytes(size)) if rng.random() < 0.5 else bytes(size)


def _lied(data: bytes, rng: random.Random) -> bytes:
    """Changes a size in the archive's directory: a member's unpacked or packed size."""
    places = [i for i in range(len(data) - 46) if data[i : i + 4] == b"PK\x01\x02"]
    at = rng.choice(places) + rng.choice((20, 24, 42))
    return data[:at] + struct.pack("<I", rng.choice((0, 1, 2**31, 2**32 - 2))) + data[at + 4 :]


# Operations that touch files, the network or the host's code.
OPERATIONS = (
    "WriteFile", "ReadFile", "MatchingFiles", "SaveV2", "RestoreV2", "MergeV2Checkpoints", "PyFunc",
    "EagerPyFunc", "PyFuncStateless", "PrintV2", "ImmutableConst", "InitializeTableFromTextFileV2",
    "TFRecordDataset", "RemoteCall", "WholeFileReaderV2", "DebugIdentityV2", "XlaCustomCallV2", "Unknown",
    "LMDBDataset", "TextLineDataset", "SqlDataset",
)  # fmt: skip


def mutate_export(source: Path, target: Path, rng: random.Random) -> str:
    """Writes a mutated copy of a SavedModel; returns the mutation's name."""
    shutil.copytree(source, target)
    about, graph = target / "assets.extra" / "timetotrain.json", target / "saved_model.pb"
    index = target / "variables" / "variables.index"
    data = target / "variables" / "variables.data-00000-of-00001"

    def values(change: Callable[[Any, random.Random], Any]) -> None:
        about.write_text(json.dumps(change(json.loads(about.read_text()), rng)))

    kinds: dict[str, Callable[[], Any]] = {
        "about": lambda: values(mutate_values),
        "about bytes": lambda: about.write_bytes(mutate_bytes(about.read_bytes(), rng)),
        "nested about": lambda: about.write_text("[" * 200_000),
        "graph bytes": lambda: graph.write_bytes(mutate_bytes(graph.read_bytes(), rng)),
        "index bytes": lambda: index.write_bytes(mutate_bytes(index.read_bytes(), rng)),
        "data bytes": lambda: data.write_bytes(mutate_bytes(data.read_bytes(), rng)),
        "operation": lambda: change_graph(graph, rng, _operation),
        "node": lambda: change_graph(graph, rng, lambda made, _: mutate_message(random_node(made, rng), rng)),
        "object": lambda: change_graph(
            graph, rng, lambda made, _: mutate_message(made.object_graph_def, rng)
        ),
        "any field": lambda: change_graph(graph, rng, mutate_message),
        "link": lambda: _link(rng.choice((about, graph, index, data)), rng),
        "pipe": lambda: _pipe(rng.choice((about, graph))),
        "other graph": lambda: (target / rng.choice(("saved_model.cpb", "saved_model.pbtxt"))).write_bytes(
            b"x"
        ),
    }
    name = rng.choice((*kinds, *["about", "operation", "node"] * 2))
    kinds[name]()
    return name


def change_graph(path: Path, rng: random.Random, change: Callable[[Any, random.Random], None]) -> None:
    """Changes the graph of a file saved_model.pb."""
    from tensorflow.core.protobuf import saved_model_pb2

    made = saved_model_pb2.SavedModel.FromString(path.read_bytes())
    change(made.meta_graphs[0], rng)
    path.write_bytes(made.SerializeToString())


def random_node(graph: Any, rng: random.Random, kind: str = "") -> Any:
    """Returns a node of any function but the traced ones; `kind` asks for one operation."""
    functions = [f for f in graph.graph_def.library.function if "traced" not in f.signature.name]
    nodes = [node for f in functions for node in f.node_def if kind in ("", node.op)]
    return rng.choice(nodes)


def _operation(graph: Any, rng: random.Random) -> None:
    random_node(graph, rng).op = rng.choice(OPERATIONS)


def mutate_message(message: Any, rng: random.Random) -> None:
    """Gives one random field that is set, at any depth of a protocol buffer, another value."""
    while fields := message.ListFields():
        field, value = rng.choice(fields)
        if field.message_type:
            if field.is_repeated:
                keys = list(value) if field.message_type.GetOptions().map_entry else range(len(value))
                value = value[rng.choice(keys)]
            if not hasattr(value, "ListFields"):  # A map of texts or numbers.
                return
            message = value
            continue
        others = {bool: (True, False), str: ("", "missing", EVIL), bytes: (b"\xff", b"\xff" * 10_000)}
        numbers = (-1, 0, 7, 40, 2**20, 2**31 - 1, HUGE)
        with contextlib.suppress(ValueError, TypeError):  # A number beyond the field's type.
            new = rng.choice(others.get(type(value[0] if field.is_repeated else value), numbers))
            if field.is_repeated:
                value[rng.randrange(len(value))] = new
            else:
                setattr(message, field.name, new)
        return


def _link(path: Path, rng: random.Random) -> None:
    path.unlink()
    os.symlink(rng.choice(("/etc/passwd", "/dev/zero", "/dev/null", ".", path.name)), path)


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)
