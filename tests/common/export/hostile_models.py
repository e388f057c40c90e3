"""Models of an attacker: mutated checkpoints and exports, each given to `timetotrain predict` or `export`.

Files, imports and memory are watched. Everything runs in one process, so that TensorFlow is imported only once.
"""

import contextlib
import dataclasses
import io
import json
import os
import random
import shutil
import sys
import traceback
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from common.files import ROOT
from tests import hostile
from tests.hostile import Member

MOST_BYTES = 1 << 30  # Limit of the rise of resident memory.
_FINE = (str(ROOT), sys.prefix, sys.base_prefix)
# Operations that touch files, the network or the host's code.
OPERATIONS = (
    "WriteFile", "ReadFile", "MatchingFiles", "SaveV2", "RestoreV2", "MergeV2Checkpoints", "PyFunc",
    "EagerPyFunc", "PyFuncStateless", "PrintV2", "ImmutableConst", "InitializeTableFromTextFileV2",
    "TFRecordDataset", "RemoteCall", "WholeFileReaderV2", "DebugIdentityV2", "XlaCustomCallV2", "Unknown",
    "LMDBDataset", "TextLineDataset", "SqlDataset",
)  # fmt: skip


def model(folder: Path) -> tuple[Path, Path]:
    """Returns (a checkpoint, its SavedModel) of a perceptron with 8 units for 8 x 8 pictures."""
    from common.distributed.replicas.single import Single
    from common.export import formats, trained
    from common.layers.precision import precision
    from common.train import checkpoint
    from common.train.state import State
    from mnist.presets import PRESETS
    from mnist.task import Task

    changes = {"model": "mlp", "hidden_layers": 1, "hidden_units": 8, "image_size": 8, "precision": "fp32"}
    config = dataclasses.replace(PRESETS["cpu-tiny"], **changes)
    task = Task(config, None)
    task.labels = lambda: [f"digit {i}" for i in range(config.num_classes)]  # type: ignore[method-assign]
    task.assets = lambda: {"words.txt": b"a\nb\n"}  # type: ignore[method-assign]
    state = State(task, Single(), precision("fp32"))
    run = types.SimpleNamespace(state=state, config=config, task=task)
    saved = checkpoint.save(run, folder / "checkpoints")  # type: ignore[arg-type]
    formats.write(trained.load(saved), folder / "export", "savedmodel")
    return saved, folder / "export"


def mutate_checkpoint(source: Path, target: Path, rng: random.Random) -> str:
    """Writes a mutated copy of a checkpoint; returns the mutation's name."""
    content = hostile.members(source)
    every = lambda change: hostile.write(target, _changed(content, rng, change))  # noqa: E731
    about = lambda: hostile.mutate_values(hostile.meta(content), rng)  # noqa: E731
    kinds: dict[str, Callable[[], Any]] = {
        "bytes": lambda: target.write_bytes(hostile.mutate_bytes(source.read_bytes(), rng)),
        "meta": lambda: hostile.write(target, hostile.with_meta(content, about())),
        "member lost": lambda: hostile.write(target, _without(content, rng)),
        "kind": lambda: every(lambda _: hostile.array(_value(rng))),
        "member bytes": lambda: every(lambda data: hostile.mutate_bytes(data, rng)),
        "member name": lambda: hostile.write(target, _renamed(content, rng)),
    }
    name = rng.choice((*kinds, *["meta"] * 8))
    kinds[name]()
    return name


def _without(members: list[Member], rng: random.Random) -> list[Member]:
    lost = rng.randrange(len(members))
    return [*members[:lost], *members[lost + 1 :]]


def _changed(members: list[Member], rng: random.Random, change: Callable[[bytes], bytes]) -> list[Member]:
    at = rng.randrange(len(members))
    return [(name, change(data) if i == at else data) for i, (name, data) in enumerate(members)]


def _renamed(members: list[Member], rng: random.Random) -> list[Member]:
    at = rng.randrange(len(members))
    new = rng.choice(
        (
            "../escaped",
            "/tmp/escaped",
            "..",
            "",
            "weights/x",
            "moments/x/mean",
            "carried/x/y",
            f"{hostile.EVIL}.py",
        )
    )
    return [(f"{new}.npy" if i == at else name, data) for i, (name, data) in enumerate(members)]


def _value(rng: random.Random) -> Any:
    nan = np.full([64, 8], np.nan, np.float32)
    return rng.choice((np.zeros([2, 3]), np.array("text"), np.array([True]), np.array(1j), nan))


def mutate_export(source: Path, target: Path, rng: random.Random) -> str:
    """Writes a mutated copy of a SavedModel; returns the mutation's name."""
    shutil.copytree(source, target)
    about, graph = target / "assets.extra" / "timetotrain.json", target / "saved_model.pb"
    index = target / "variables" / "variables.index"
    data = target / "variables" / "variables.data-00000-of-00001"

    def values(change: Callable[[Any, random.Random], Any]) -> None:
        about.write_text(json.dumps(change(json.loads(about.read_text()), rng)))

    kinds: dict[str, Callable[[], Any]] = {
        "about": lambda: values(hostile.mutate_values),
        "about bytes": lambda: about.write_bytes(hostile.mutate_bytes(about.read_bytes(), rng)),
        "nested about": lambda: about.write_text("[" * 200_000),
        "graph bytes": lambda: graph.write_bytes(hostile.mutate_bytes(graph.read_bytes(), rng)),
        "index bytes": lambda: index.write_bytes(hostile.mutate_bytes(index.read_bytes(), rng)),
        "data bytes": lambda: data.write_bytes(hostile.mutate_bytes(data.read_bytes(), rng)),
        "node": lambda: change_graph(
            graph, rng, lambda proto, _: mutate_message(random_node(proto, rng), rng)
        ),
        "object": lambda: change_graph(
            graph, rng, lambda proto, _: mutate_message(proto.object_graph_def, rng)
        ),
        "any field": lambda: change_graph(graph, rng, mutate_message),
    }
    name = rng.choice((*kinds, *["about", "node"] * 2))
    kinds[name]()
    return name


def change_graph(path: Path, rng: random.Random, change: Callable[[Any, random.Random], None]) -> None:
    """Changes the graph of a file saved_model.pb."""
    from tensorflow.core.protobuf import saved_model_pb2

    model = saved_model_pb2.SavedModel.FromString(path.read_bytes())
    change(model.meta_graphs[0], rng)
    path.write_bytes(model.SerializeToString())


def random_node(graph: Any, rng: random.Random, kind: str = "") -> Any:
    """Returns a node of any function but the traced ones; `kind` asks for one operation."""
    functions = [f for f in graph.graph_def.library.function if "traced" not in f.signature.name]
    nodes = [node for f in functions for node in f.node_def if kind in ("", node.op)]
    return rng.choice(nodes)


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
        others = {bool: (True, False), str: ("", "missing", hostile.EVIL), bytes: (b"\xff", b"\xff" * 10_000)}
        numbers = (-1, 0, 7, 40, 2**20, 2**31 - 1, hostile.HUGE)
        with contextlib.suppress(ValueError, TypeError):  # A number beyond the field's type.
            new = rng.choice(others.get(type(value[0] if field.is_repeated else value), numbers))
            if field.is_repeated:
                value[rng.randrange(len(value))] = new
            else:
                setattr(message, field.name, new)
        return


def run(number: int, seed: int, sound: tuple[Path, Path], place: Path) -> dict[str, Any]:
    """Makes and tries one case in this process, in an empty folder; returns the observations.

    Even numbers are checkpoints, odd ones exports; `sound` is a valid checkpoint and its export.
    """
    rng = random.Random(f"{seed} {number}")
    verb, model = "predict", place / "model"
    if number % 2:
        kind = f"export: {mutate_export(sound[1], model, rng)}"
    else:
        model = place / "checkpoint_00000001.npz"
        kind = f"checkpoint: {mutate_checkpoint(sound[0], model, rng)}"
        verb = rng.choice(("predict", "export"))
    return {"number": number, "kind": kind, "verb": verb, **attempt(verb, model, place)}


def attempt(verb: str, model: Path, place: Path, flags: Sequence[str] = ()) -> dict[str, Any]:
    """Passes a model to `predict` or `export` in the folder `place`; returns the observations."""
    from timetotrain import cli

    folder = place / "here"
    folder.mkdir()
    marker = place / "imported"
    (folder / f"{hostile.EVIL}.py").write_text(f"open({str(marker)!r}, 'w').close()\n")
    picture = place / "digit.png"
    Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8)).save(picture)
    command = [verb, str(model), *([str(picture)] if verb == "predict" else [str(folder / "out")]), *flags]
    out, err = io.StringIO(), io.StringIO()
    before, modules = _files(place), set(sys.modules)
    with (
        _in(folder),
        contextlib.redirect_stdout(_Text(out)),
        contextlib.redirect_stderr(_Text(err)),
        _peak() as peak,
    ):
        try:
            status: int | None = cli.main(command)
        except SystemExit as error:
            status = int(error.code or 0)
        except BaseException:
            traceback.print_exc()
            status = None
    errors = [line for line in err.getvalue().splitlines() if line.strip()]
    changed = {p for p in _files(place) ^ before if not str(p[0]).startswith("here/out")}
    return {
        "status": status,
        "error": errors[-1] if status != 0 and errors else "",
        "traceback": status is None or (status != 0 and len(errors) != 1),
        "wrote": sorted(str(path) for path, *_ in changed),
        "imported": sorted(_foreign(set(sys.modules) - modules)) + ["marker"] * marker.exists(),
        "bytes": peak[0],
    }


class _Text(io.TextIOWrapper):
    """A text stream over another stream, with the `reconfigure` that a verb calls."""

    def __init__(self, out: io.StringIO):
        super().__init__(io.BytesIO())
        self._out = out

    def write(self, text: str) -> int:
        return self._out.write(text)


@contextlib.contextmanager
def _in(folder: Path) -> Iterator[None]:
    before, path = os.getcwd(), list(sys.path)
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
        sys.path[:] = path


@contextlib.contextmanager
def _peak() -> Iterator[list[int]]:
    """Yields a list that gets how far resident memory rises in the block, in bytes."""
    rise, before = [0], _memory("VmRSS")
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # Resets the peak.
    yield rise
    rise[0] = _memory("VmHWM") - before


def _memory(key: str) -> int:
    """Returns a size from /proc/self/status, such as VmRSS, in bytes."""
    return int(Path("/proc/self/status").read_text().partition(f"{key}:")[2].split()[0]) * 1024


def _files(place: Path) -> set[tuple]:
    """Returns names, sizes and times of the files in the folder and of those beside it."""
    states = {(path.relative_to(place), *_state(path)) for path in place.rglob("*")}
    beside = [path for folder in (place.parent, Path("/tmp")) for path in folder.glob("*escaped*")]
    return states | {(path, *_state(path)) for path in beside}


def _state(path: Path) -> tuple[int, int]:
    with contextlib.suppress(OSError):
        stat = path.lstat()
        return (0, 0) if path.is_dir() else (stat.st_size, stat.st_mtime_ns)
    return (-1, -1)


def _foreign(names: set[str]) -> set[str]:
    """Returns the modules that neither belong to a package of this environment nor were written by TensorFlow."""
    foreign = set()
    for name in (name for name in names if not name.startswith("__autograph_generated_file")):
        file = getattr(sys.modules.get(name), "__file__", None)
        if hostile.EVIL in name or (file and not str(file).startswith(_FINE)):
            foreign.add(name)
    return foreign


def broken(case: dict[str, Any]) -> list[str]:
    """Returns what a case did that it must not do."""
    promises = {
        "a traceback": case["traceback"],
        "wrote outside": case["wrote"],
        "imported": case["imported"],
        "over 1 GB": case["bytes"] >= MOST_BYTES,
    }
    return [name for name, happened in promises.items() if happened]
