"""Damages exports as an attacker would: seeded mutations of a SavedModel's files and graph."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lab.bench.harness import hostile

# Operations that touch files, the network or the host's code.
OPERATIONS = (
    "WriteFile",
    "ReadFile",
    "MatchingFiles",
    "SaveV2",
    "RestoreV2",
    "MergeV2Checkpoints",
    "PyFunc",
    "EagerPyFunc",
    "PyFuncStateless",
    "PrintV2",
    "ImmutableConst",
    "InitializeTableFromTextFileV2",
    "TFRecordDataset",
    "RemoteCall",
    "WholeFileReaderV2",
    "DebugIdentityV2",
    "XlaCustomCallV2",
    "Unknown",
    "LMDBDataset",
    "TextLineDataset",
    "SqlDataset",
)


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
        "operation": lambda: change_graph(graph, rng, _operation),
        "attribute": lambda: change_graph(graph, rng, _attribute),
        "constant": lambda: change_graph(graph, rng, _constant),
        "object": lambda: change_graph(graph, rng, _object),
        "call": lambda: change_graph(graph, rng, _call),
        "link": lambda: _link(rng.choice((about, graph, index, data)), rng),
        "pipe": lambda: _pipe(rng.choice((about, graph))),
        "other graph": lambda: (target / rng.choice(("saved_model.cpb", "saved_model.pbtxt"))).write_bytes(
            b"x"
        ),
    }
    name = rng.choice((*kinds, *["about", "operation", "attribute"] * 2))
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


def _attribute(graph: Any, rng: random.Random) -> None:
    node = random_node(graph, rng)
    name = rng.choice([*node.attr, "T"])
    value = node.attr[name]
    choice = rng.randrange(5)
    if choice == 0:
        value.type = rng.randrange(0, 40)
    elif choice == 1:
        value.i = rng.choice((-1, 0, 2**40, hostile.HUGE))
    elif choice == 2:
        value.shape.dim.add().size = rng.choice((-5, hostile.HUGE))
    elif choice == 3:
        value.s = b"\xff" * rng.choice((1, 10_000))
    else:
        value.func.name = rng.choice(("missing", hostile.EVIL))


def _constant(graph: Any, rng: random.Random) -> None:
    tensor = random_node(graph, rng, "Const").attr["value"].tensor
    del tensor.tensor_shape.dim[:]
    for _ in range(rng.choice((1, 1, 3))):
        tensor.tensor_shape.dim.add().size = rng.choice((hostile.HUGE, 2**20, 2**31, 0, -1, 7))


def _object(graph: Any, rng: random.Random) -> None:
    node = rng.choice(graph.object_graph_def.nodes)
    choice = rng.randrange(4)
    if choice == 0:
        node.asset.asset_file_def_index = 0
    elif choice == 1:
        node.user_object.identifier = rng.choice(("_tf_keras_model", "optimizer", hostile.EVIL))
    elif choice == 2:
        node.registered_name = rng.choice(("Custom.Evil", hostile.EVIL))
    else:
        node.children.add(node_id=rng.choice((0, 10**6, -1)), local_name="x")


def _call(graph: Any, rng: random.Random) -> None:
    functions = [f for f in graph.graph_def.library.function if "traced" not in f.signature.name]
    node = (
        random_node(graph, rng, "StatefulPartitionedCall") if rng.random() < 0.5 else random_node(graph, rng)
    )
    node.op = "StatefulPartitionedCall"
    node.attr["f"].func.name = rng.choice(functions).signature.name


def _link(path: Path, rng: random.Random) -> None:
    path.unlink()
    os.symlink(rng.choice(("/etc/passwd", "/dev/zero", "/dev/null", ".", path.name)), path)


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)
