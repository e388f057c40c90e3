"""FLOPs and bytes of every full-size network's training step and forward pass, for `python -m systems predict`.

    python -m lab.bench.costs [NETWORK...] [--write]

It traces each network (nothing is compiled or run), reads the HLO with programs/hlo.py, and compares the result with
systems/predict/costs.json. Two batches show how each kernel's sizes grow linearly with the replica's batch.
--write updates the file instead.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import math
import sys
from typing import Any

import tensorflow as tf
import tf_keras

from common.distributed.replicas.single import Single
from common.files import write_atomically
from common.layers.precision import precision
from common.layers.xla import plain_forms
from lab.bench.harness import ROOT
from lab.bench.programs import hlo

PATH = ROOT / "systems/predict/costs.json"
# Network -> benchmark, preset, changed fields, the two batches.
NETWORKS: dict[str, tuple[str, str, dict[str, Any], tuple[int, int]]] = {
    "resnet50": ("resnet", "tpu-v3-2048", {}, (16, 32)),
    "alexnet_bn": ("resnet", "cpu-cluster-1024-alexnet", {}, (16, 32)),
    "ssd": ("ssd", "tpu-v3-256", {}, (16, 32)),
    "transformer_big": ("transformer", "tpu-v3-2048", {}, (2, 4)),
    **{
        model: ("tsm_kinetics", "summit-256", {"model": model}, (2, 4))
        for model in ("tsm", "tsn", "i3d_3x3x3", "i3d_3x1x1")
    },
}
FIELDS = ("kind", "count", "groups", "m", "n", "k", "bytes", "wide")


def cost(network: str) -> dict[str, Any]:
    """Returns a network's JSON: name, sizes, and its kernels, with bf16 between layers."""
    benchmark, preset, changes, batches = NETWORKS[network]
    module = importlib.import_module(f"{benchmark}.task")
    config = importlib.import_module(f"{benchmark}.presets").PRESETS[preset]
    result: dict[str, Any] = {"network": network, "benchmark": benchmark, "source": "HLO of the traced step"}
    passes: dict[str, list[list[hlo.Kernel]]] = {"train": [], "forward": []}
    choices = {name: hlo.Choices() for name in passes}
    for batch in reversed(batches):
        task = module.Task(_single(config, batch, changes), None)
        model = task.build(Single(), precision("bf16"))
        data = next(iter(task.synthetic_input(batch)))
        for name, step in (("train", _train(task, model)), ("forward", _forward(task, model))):
            with plain_forms():  # The model is fitted to published runs, whose programs have these forms.
                text = step.experimental_get_compiler_ir(data)(stage="hlo")
            passes[name].append(hlo.kernels(text, choices[name]))
            choices[name].replay()
        result |= _sizes(model)
        tf_keras.backend.clear_session()
    result["fields"] = FIELDS
    for name, (large, small) in passes.items():
        result[name] = lines(small, large, *batches)
    return result


def _single(config: Any, batch: int, changes: dict[str, Any]) -> Any:
    one = {"num_replicas": 1, "partitions": 1, "accumulation_steps": 1, "replicas": "single"}
    one |= {"global_batch_size": batch, "eval_batch_size": batch, "precision": "bf16", "loss_scale": 1.0}
    if hasattr(config, "batch_norm_span"):
        one["batch_norm_span"] = batch
    return dataclasses.replace(config, **one, **changes)


def _train(task: Any, model: tf_keras.Model) -> Any:
    @tf.function(jit_compile=True)
    def step(batch):
        with tf.GradientTape() as tape:
            loss = _loss(task, model, batch)
        gradients = tape.gradient(loss, model.trainable_variables, unconnected_gradients="zero")
        return [loss, *map(tf.convert_to_tensor, gradients)]

    return step


def _forward(task: Any, model: tf_keras.Model) -> Any:
    return tf.function(lambda batch: _loss(task, model, batch), jit_compile=True)


def _loss(task: Any, model: tf_keras.Model, batch: Any) -> tf.Tensor:
    return tf.add_n([term.total for term in task.loss(model, batch).values()])


def _sizes(model: tf_keras.Model) -> dict[str, Any]:
    """Counts parameters, tensors, and batch-norm channels, whose statistics groups of replicas share."""
    norms = [layer for layer in model.submodules if hasattr(layer, "moving_mean")]
    return {
        "parameters": sum(math.prod(v.shape) for v in model.trainable_variables),
        "tensors": len(model.trainable_variables),
        "norm_layers": len(norms),
        "norm_channels": sum(math.prod(layer.moving_mean.shape) for layer in norms),
    }


def lines(small: list[hlo.Kernel], large: list[hlo.Kernel], b1: int, b2: int) -> list[list[Any]]:
    """Returns rows [kind, count, [a, b] per size] where size = a + b * batch; `count` equal kernels share a row.

    Raises:
      ValueError: the two programs differ in more than their sizes.
    """
    if [k.kind for k in small] != [k.kind for k in large]:
        raise ValueError("the programs of the two batches have different kernels")
    counted: dict[tuple, int] = {}
    for one, two in zip(small, large):
        row: list[Any] = [one.kind]
        for field in FIELDS[2:]:
            x, y = getattr(one, field), getattr(two, field)
            slope = (y - x) / (b2 - b1)
            row.append((_round(x - slope * b1), _round(slope)))
        counted[tuple(row)] = counted.get(tuple(row), 0) + 1
    return [[kind, count, *map(list, sizes)] for (kind, *sizes), count in counted.items()]


def _round(value: float) -> float | int:
    value = round(value, 3)
    return int(value) if value == int(value) else value


def differences(network: str, tolerance: float = 0.0) -> list[str]:
    """Lists where a network's committed costs differ from the current code's."""
    old = _committed().get(network, {})
    new = json.loads(json.dumps(cost(network)))
    return [f"{network}: {key}" for key in new if old.get(key) != new[key]]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help=", ".join(NETWORKS))
    parser.add_argument("--write", action="store_true", help="write the file, not only compare with it")
    arguments = parser.parse_args(argv)
    wrong = []
    for network in arguments.networks or NETWORKS:
        if network not in NETWORKS:
            parser.error(f"{network}: unknown; known: {', '.join(NETWORKS)}")
        if not arguments.write:
            found = differences(network)
            print("\n".join(found) or f"{network}: as committed.")
            wrong += found
            continue
        write_atomically(PATH, _dump(_committed() | {network: cost(network)}).encode())
        print(f"{network}: written to {PATH.name}.")
    return 1 if wrong else 0


def _committed() -> dict[str, dict[str, Any]]:
    return json.loads(PATH.read_text(encoding="utf-8"))


def _dump(networks: dict[str, dict[str, Any]]) -> str:
    """Formats JSON with one kernel per line."""
    parts = [f'"{name}": {_object(networks[name])}' for name in sorted(networks)]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _object(network: dict[str, Any]) -> str:
    parts = []
    for key, value in network.items():
        if key in ("train", "forward"):
            rows = ",\n  ".join(json.dumps(row) for row in value)
            parts.append(f'"{key}": [\n  {rows}\n ]')
        else:
            parts.append(f'"{key}": {json.dumps(value)}')
    return "{\n " + ",\n ".join(parts) + "\n}"


if __name__ == "__main__":
    sys.exit(main())
