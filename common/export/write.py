"""Writes an export: NAME.mlir.bc for every program, arrays.npz with the arrays that no rule makes, manifest.json.

It writes the folder under a temporary name and renames it at the end, so a folder with the final name is complete.
"""

from __future__ import annotations

import contextlib
import json
import math
import pathlib
import re
import time
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from typing import Any

import numpy as np
import tensorflow as tf

from common.config.digest import digest, to_dict
from common.config.schema import RunConfig
from common.distributed import stablehlo
from common.errors import UserError
from common.export import cost, reference
from common.export.steps import Argument, Steps, batch_of
from common.files import whole
from common.train.multiply_adds import forward_macs

FORMAT = 2
# Work outside the exported steps, done by the host or by the loop around the steps.
_OUTSIDE = (
    "reading, decoding and augmenting examples, batching",
    "merging batch-norm moments before an evaluation (common/layers/batch_norm.py)",
    "adding up an evaluation's sums, joining its arrays",
)


def write(
    task: Any,
    config: RunConfig,
    folder: str,
    kind: str,
    say: Callable[[str], None],
    programs: str = "both",
    values: bool = True,
    platform: str = "",
) -> dict[str, Any]:
    """Exports `task`, with the configuration `steps.to_export(config)`, to `folder`.

    Args:
      task: the benchmark's task, without data.
      config: the whole run's configuration.
      folder: new or empty; unchanged if the export fails.
      kind: step that computes the reference losses: "compiled", "uncompiled" (several times as fast on a CPU), or
        "none"; with several replicas, the first two both use the backend mirrored.
      say: prints a line of progress.
      programs: "train", "eval" or "both"; or one program by name, such as "train-2", if there are several shapes.
      values: False omits initial values and losses, which take half of the time; a compiler does not need them.
      platform: the kind of the devices that the programs are for, such as "NVIDIA H200"; "" means any.

    Returns:
      The manifest.

    Raises UserError if the folder cannot be written, the disk is full, XLA cannot compile a training step, or there is
    no such step. If XLA cannot compile an evaluation step, the export omits it and names it in the manifest.
    """
    path = _place(folder)
    with contextlib.ExitStack() as stack:
        with _writing(folder):
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = stack.enter_context(whole(path))
            partial.mkdir()
        manifest = _write(
            task, config, folder, partial, kind if values else "none", say, programs, values, platform
        )
        with _writing(folder):
            stack.close()
    say(f"{path}: {manifest['bytes'] / 1e6:.2f} MB in all; python -m lab.bench.replay {path}")
    return manifest


def _write(
    task: Any,
    config: RunConfig,
    folder: str,
    path: pathlib.Path,
    kind: str,
    say: Callable[[str], None],
    selector: str,
    values: bool,
    platform: str,
) -> dict[str, Any]:
    """Like `write`, but writes to `path`, an empty folder; error messages call it `folder`."""
    began = time.time()
    backend = reference.prepared(task.config.num_replicas, kind, say)
    steps = Steps(task, config, values, platform)
    stored = {name: a.stored for name, a in steps.state.items() if a.stored is not None}
    manifest = _about(task, config, steps)
    computed = reference.make(steps, kind, backend)
    for step in ("train", "eval"):
        if selector.partition("-")[0] not in ("both", step):
            continue
        training = step == "train"
        batches = steps.batches(training)
        for i, batch in enumerate(batches):
            name = f"{step}-{i}" if len(batches) > 1 else step
            if selector not in ("both", step, name):
                continue
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
                if "partitioned_file" in program:
                    (path / program["partitioned_file"]).write_bytes(text.artifact(partitioned=True))
            stored |= {a.name: a.stored for a in batch.values() if a.stored is not None}
            flops = program["cost"]["matrix_flops"]
            say(f"{name}: {len(artifact) / 1e6:.2f} MB, {flops / 1e9:.3g} matrix GFLOP")
            program["reference"] = computed and reference.describe(computed, steps, training, batch, say)
            manifest["programs"].append(program)
    if not manifest["programs"] and not manifest["refused"]:
        fix = "use both, train, eval, or a name as train-0"
        raise UserError(f"--export_programs={selector}: no such step; {fix}")
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
    """Checks that the export folder is new or empty; returns its path."""
    with _writing(folder):
        path = pathlib.Path(folder).resolve()  # A link's target folder can be replaced; the link cannot.
        if path.is_dir() and any(path.iterdir()):
            raise UserError(f"--export={folder}: the folder is not empty; name a new one")
        if path.exists() and not path.is_dir():
            raise UserError(f"--export={folder}: no folder; name a new one")
        if path.is_mount():
            raise UserError(f"--export={folder}: a whole file system; name a new folder in it")
    return path


@contextlib.contextmanager
def _writing(folder: str) -> Iterator[None]:
    """Converts write errors to a UserError; use it only around writing, not around the work in between."""
    try:
        yield
    except OSError as error:
        fix = "free some space there, or name a folder that can be written"
        raise UserError(f"--export={folder}: {error.strerror or error}; {fix}") from error


def _about(task: Any, config: RunConfig, steps: Steps) -> dict[str, Any]:
    alone, flops = task.config, None
    with contextlib.suppress(UserError):  # A network with unknown sizes.
        flops = 2 * forward_macs(steps.model, task.batch_shapes)
    return {
        "format": FORMAT,
        "benchmark": config.benchmark,
        "model": config.model,
        "system": config.system,
        "precision": config.precision,
        "batch": {
            "train": alone.global_batch_size // alone.num_groups,
            "eval": alone.eval_batch_size // alone.num_groups,
        },
        "num_replicas": alone.num_replicas,
        "partitions": alone.partitions,
        "replicas_of_the_run": config.num_replicas,
        "config": to_dict(alone),
        "config_digest": digest(alone),
        "versions": {
            "stablehlo": stablehlo.VERSION,
            **{package: version(package) for package in ("tensorflow", "tf-keras", "numpy")},
        },
        "parameters": sum(math.prod(v.value.shape) for v in steps.state.values() if v.role == "weight"),
        "forward_flops_per_example": flops,
        "chooses": task.chooses,
        "outside": [*_OUTSIDE, _quality(task)],
        "values": steps.values,
        "refused": {},
        "state": [_describe(argument) for argument in steps.state.values()],
        "programs": [],
    }


def _quality(task: Any) -> str:
    """Describes, from the docstring of `Task.quality`, how an evaluation's outputs become the benchmark's quality."""
    kind = type(task)
    summary = (kind.quality.__doc__ or kind.__doc__ or "").strip().partition("\n")[0]
    return f"{kind.__module__}.{kind.__name__}.quality: {summary}"


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
        "per_replica": argument.per_replica,
    }


def _key(name: str) -> str:
    """Converts an array's name to a file name within the npz."""
    return name.replace("/", ".")


def _plain(array: np.ndarray) -> np.ndarray:
    """Converts bfloat16 to float32, so that any numpy can read the array from a file."""
    return array.astype(np.float32) if array.dtype == tf.bfloat16.as_numpy_dtype else array


def _program(
    steps: Steps, name: str, training: bool, batch: Mapping[str, Argument]
) -> tuple[dict[str, Any], stablehlo.Lowered]:
    function = steps.train if training else steps.evaluate
    lowered = stablehlo.lower(function, batch_of(batch), "training step" if training else "evaluation step")
    inputs = [batch[key] for key in sorted(batch)]  # The order in which tf.nest flattens a dict.
    names = [*(a.name for a in inputs), *map(steps.name_of, lowered.captured)]
    number = steps.replicas.number.name.partition(":")[0]
    used = set(re.findall(r"%arg\d+\b(?!: )", lowered.text)) if number in names else ()
    if number in names and f"%arg{names.index(number)}" not in used:
        raise UserError(
            f"--export: XLA takes the replica's number in {name} as a constant; cut with Replicas.cut where a start "
            "depends on it"
        )
    pairs = zip(names, lowered.arguments)
    arguments = [{"name": n, "shape": shape, "dtype": dtype} for n, (shape, dtype) in pairs]
    outputs = [output for output, _ in reference.outputs_of(lowered.returned)]
    results = []
    for i, (shape, dtype) in enumerate(lowered.results):
        updates = names[lowered.aliases[i]] if i in lowered.aliases else None
        label = outputs[i] if i < len(outputs) else updates
        results.append({"name": label, "shape": shape, "dtype": dtype, "updates": updates})
    # With several replicas, jax runs a program whose collectives have channels.
    several = {"partitioned_file": f"{name}.partitioned.mlir.bc"} if steps.replicas.num_replicas > 1 else {}
    return {
        "name": name,
        "kind": "train" if training else "eval",
        "file": f"{name}.mlir.bc",
        **several,
        "inputs": [_describe(a) for a in inputs],
        "arguments": arguments,
        "results": results,
        "custom_calls": lowered.custom_calls(),
        "cost": cost.count(lowered.text),
        "exchanges": cost.exchanges(lowered.text),
        "wide": cost.wide(lowered.text),
    }, lowered
