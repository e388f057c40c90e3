"""Writes an export: NAME.mlir.bc for every program, arrays.npz with the arrays that no rule makes, manifest.json.

The folder is written under another name and renamed when it is whole, so a folder of the final name is complete.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import pathlib
import time
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from typing import Any

import numpy as np
import tensorflow as tf

from common.config.digest import digest, to_dict
from common.config.schema import RunConfig
from common.errors import UserError
from common.export import cost, rules, stablehlo
from common.export.steps import Argument, Steps, batch_of
from common.files import whole
from common.train.describe import forward_macs

FORMAT = 1
STEPS = 3
REFERENCES = ("compiled", "uncompiled", "none")
# Work outside the exported steps: the host does it, or the loop around the steps.
_OUTSIDE = (
    "reading, decoding and augmenting examples, batching",
    "merging batch-norm moments before an evaluation (common/layers/batch_norm.py)",
    "adding up an evaluation's sums, joining its arrays",
)


def write(
    task: Any, config: RunConfig, folder: str, reference: str, say: Callable[[str], None]
) -> dict[str, Any]:
    """Exports `task`, of the configuration `config.single_replica()`, into `folder`.

    Args:
      task: the benchmark's, without data.
      config: the whole run's.
      folder: new or empty; stays as it was where the export fails.
      reference: which step computes the losses to compare with: "compiled", "uncompiled" (several times as fast on a
        CPU), or "none".
      say: prints a line of progress.

    Returns:
      The manifest.

    Raises:
      UserError: the folder cannot be written, the disk is full, or XLA cannot compile a training step. An evaluation
        step that XLA cannot compile is left out and named in the manifest.
    """
    path = _place(folder)
    with contextlib.ExitStack() as stack:
        with _writing(folder):
            path.parent.mkdir(parents=True, exist_ok=True)
            made = stack.enter_context(whole(path))
            made.mkdir()
        manifest = _write(task, config, folder, made, reference, say)
        with _writing(folder):
            stack.close()
    say(f"{path}: {manifest['bytes'] / 1e6:.2f} MB in all; python -m bench.replay {path}")
    return manifest


def _write(
    task: Any,
    config: RunConfig,
    folder: str,
    path: pathlib.Path,
    reference: str,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """As `write`, into `path`, an empty folder that errors call `folder`."""
    began = time.time()
    steps = Steps(task, config)
    stored = {name: a.value for name, a in steps.state.items() if a.rule["rule"] == "stored"}
    manifest = _about(task, config, steps)
    for training in (True, False):
        batches = steps.batches(training)
        for i, batch in enumerate(batches):
            name = ("train" if training else "eval") + (f"-{i}" if len(batches) > 1 else "")
            say(f"{name}: lowering")
            try:
                program, text = _program(steps, name, training, batch)
            except UserError as error:
                if training:
                    raise
                manifest["refused"][name] = str(error).removeprefix("--export: ")
                say(f"{name}: left out; {manifest['refused'][name]}")
                continue
            artifact = text.artifact()
            with _writing(folder):
                (path / program["file"]).write_bytes(artifact)
            stored |= {a.name: a.value for a in batch.values() if a.rule["rule"] == "stored"}
            say(
                f"{name}: {len(artifact) / 1e6:.2f} MB, {program['cost']['matrix_flops'] / 1e9:.3g} matrix GFLOP"
            )
            kind = reference
            if kind == "uncompiled" and "rng_bit_generator" in text.text:
                say(f"{name}: draws random numbers, others than TensorFlow's own kernels: no reference")
                kind = "none"
            program["reference"] = _reference(steps, training, batch, kind, say)
            manifest["programs"].append(program)
    manifest["constants"] = [_describe(argument) for argument in steps.constants.values()]
    stored |= {name: argument.value for name, argument in steps.constants.items()}
    arrays = {_key(name): _plain(value) for name, value in stored.items()}
    with _writing(folder):
        np.savez_compressed(path / "arrays.npz", **arrays)
        manifest["export_seconds"] = round(time.time() - began, 1)
        (path / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
        manifest["bytes"] = sum(file.stat().st_size for file in path.iterdir())
    return manifest


def _place(folder: str) -> pathlib.Path:
    """Returns the path of the export: a new or empty folder."""
    with _writing(folder):
        path = pathlib.Path(folder).resolve()  # The folder behind a link can be replaced, the link cannot.
        if path.is_dir() and any(path.iterdir()):
            raise UserError(f"--export={folder}: the folder is not empty; name a new one")
        if path.exists() and not path.is_dir():
            raise UserError(f"--export={folder}: no folder; name a new one")
        if path.is_mount():
            raise UserError(f"--export={folder}: a whole file system; name a new folder in it")
    return path


@contextlib.contextmanager
def _writing(folder: str) -> Iterator[None]:
    """Turns the errors of writing into a UserError; surrounds only the writing, not the work between."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"--export={folder}: {error.strerror or error}; free some space there, or name a folder that can be written"
        ) from error


def _about(task: Any, config: RunConfig, steps: Steps) -> dict[str, Any]:
    alone = task.config
    return {
        "format": FORMAT,
        "benchmark": config.benchmark,
        "model": config.model,
        "system": config.system,
        "precision": config.precision,
        "batch": {"train": alone.global_batch_size, "eval": alone.eval_batch_size},
        "replicas_of_the_run": config.num_replicas,
        "config": to_dict(alone),
        "config_digest": digest(alone),
        "versions": {
            "stablehlo": stablehlo.VERSION,
            **{package: version(package) for package in ("tensorflow", "tf-keras", "numpy")},
        },
        "parameters": sum(math.prod(v.value.shape) for v in steps.state.values() if v.role == "weight"),
        "forward_flops_per_example": _forward_flops(steps),
        "chooses": task.chooses,
        "outside": [*_OUTSIDE, _quality(task)],
        "refused": {},
        "state": [_describe(argument) for argument in steps.state.values()],
        "programs": [],
    }


def _quality(task: Any) -> str:
    """Describes how an evaluation's outputs become the benchmark's quality, by the docstring of `Task.quality`."""
    kind = type(task)
    said = (kind.quality.__doc__ or kind.__doc__ or "").strip().partition("\n")[0]
    return f"{kind.__module__}.{kind.__name__}.quality: {said}"


def _forward_flops(steps: Steps) -> int | None:
    try:
        return 2 * forward_macs(steps.model)
    except UserError:  # A network of unknown sizes.
        return None


def _describe(argument: Argument) -> dict[str, Any]:
    value = argument.value
    rule = argument.rule | ({"name": _key(argument.name)} if argument.rule["rule"] == "stored" else {})
    dtype = "bfloat16" if value.dtype == tf.bfloat16.as_numpy_dtype else value.dtype.name
    return {
        "name": argument.name,
        "role": argument.role,
        "shape": list(value.shape),
        "dtype": dtype,
        "rule": rule,
    }


def _key(name: str) -> str:
    """Returns the name of an array as a file name within the npz."""
    return name.replace("/", ".")


def _plain(array: np.ndarray) -> np.ndarray:
    """Returns an array that any numpy can read from a file: bfloat16 as float32."""
    return array.astype(np.float32) if array.dtype == tf.bfloat16.as_numpy_dtype else array


def _program(
    steps: Steps, name: str, training: bool, batch: Mapping[str, Argument]
) -> tuple[dict[str, Any], stablehlo.Lowered]:
    function = steps.train if training else steps.evaluate
    lowered = stablehlo.lower(function, batch_of(batch), "training step" if training else "evaluation step")
    given = [batch[key] for key in sorted(batch)]  # As tf.nest flattens a dict.
    names = [*(a.name for a in given), *map(steps.name_of, lowered.captured)]
    arguments = [
        {"name": n, "shape": shape, "dtype": dtype} for n, (shape, dtype) in zip(names, lowered.arguments)
    ]
    outputs = [output for output, _ in _flat(lowered.returned)]
    results = []
    for i, (shape, dtype) in enumerate(lowered.results):
        updates = names[lowered.aliases[i]] if i in lowered.aliases else None
        label = outputs[i] if i < len(outputs) else updates
        results.append({"name": label, "shape": shape, "dtype": dtype, "updates": updates})
    return {
        "name": name,
        "kind": "train" if training else "eval",
        "file": f"{name}.mlir.bc",
        "inputs": [_describe(a) for a in given],
        "arguments": arguments,
        "results": results,
        "custom_calls": lowered.custom_calls(),
        "cost": cost.count(lowered.text),
    }, lowered


def _flat(returned: Any) -> list[tuple[str, Any]]:
    """Returns (name, tensor) of a step's outputs, in tf.nest's order: a loss, or (sums, arrays)."""
    if not isinstance(returned, (tuple, list)):
        return [("loss", returned)]
    return [
        (f"{kind}/{key}", part[key])
        for kind, part in zip(("sums", "arrays"), returned)
        for key in sorted(part)
    ]


def _reference(
    steps: Steps, training: bool, batch: Mapping[str, Argument], kind: str, say: Callable[[str], None]
) -> dict[str, Any] | None:
    """Returns what TensorFlow computes with a step, for comparison.

    Of training: the first losses, and digests of the state after the first step. Of an evaluation: digests of its
    outputs.
    """
    if kind == "none":
        return None
    function = steps.train if training else steps.evaluate
    if kind == "uncompiled":
        function = tf.function(function.python_function, autograph=False)
    tensors, found = batch_of(batch), {"computed_by": f"tensorflow, {kind}, {_device()}"}
    steps.reset()
    if not training:
        outputs = {
            name: rules.digest(value.numpy(), rules.key_of(name)) for name, value in _flat(function(tensors))
        }
        return {**found, "outputs": outputs}
    losses = []
    for i in range(STEPS):
        losses.append(float(function(tensors)))
        say(f"step {i + 1}: loss {losses[-1]!r}")
        if i == 0:
            found["state"] = _changed(steps)
    steps.reset()
    return {**found, "losses": losses}


def _changed(steps: Steps) -> dict[str, Any]:
    """Returns digests of every variable after a step, and of its change."""
    digests = {}
    for name, variable in steps.variables.items():
        after, key = variable.numpy().astype(np.float64), rules.key_of(name)
        change = after - steps.state[name].value
        digests[name] = {"after": rules.digest(after, key), "change": rules.digest(change, key)}
    return digests


def _device() -> str:
    return "GPU" if tf.config.list_physical_devices("GPU") else f"CPU ({os.cpu_count()} cores)"
