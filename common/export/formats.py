"""Writes a trained network as a SavedModel, safetensors, StableHLO or ONNX.

| format | file | holds |
|---|---|---|
| savedmodel | a folder | preprocessing, network, results; `assets.extra/` has labels and vocabulary |
| safetensors | model.safetensors | the weights by name; the rest in its metadata |
| stablehlo | model.stablehlo, weights.npz, model.json | the network on fixed-size arrays; weights are arguments |
| onnx | model.onnx, timetotrain.json | the network on fixed-size arrays, of a classifier in any number, opset 18 |

Beside a network of pictures in the last two stands recipe.py, which prepares them.
"""

from __future__ import annotations

import importlib
import json
import os
import pathlib
import shutil
from collections.abc import Callable
from types import ModuleType

import numpy as np
import tensorflow as tf

from common.errors import UserError, one_line
from common.export.trained import Trained
from common.files import whole, write_atomically
from common.train.checkpoint_file import ABOUT

EXTRA = "assets.extra"  # TensorFlow's folder for files that travel with a SavedModel; it does not read them.
WEIGHTS = "weights"
LENGTH = "serving_length"  # Maximum tokens that a text network takes at once.
WITH_CODEC = ("translation", "continuation")  # Networks whose text becomes tokens on the host.
OPSET = 18


def write(trained: Trained, out: str | os.PathLike, kind: str) -> list[pathlib.Path]:
    """Writes the network into the new folder `out`; returns its files.

    Raises UserError if `out` exists, the format is unknown or cannot hold this network, or a library is missing.
    """
    out = pathlib.Path(out)
    if kind not in FORMATS:
        raise UserError(f"--format={kind}: unknown; known: {', '.join(FORMATS)}")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out}: exists; name a new folder, or remove it")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        fix = "choose another --format, or get a good copy of the checkpoint"
        with whole(out) as partial, one_line(f"--format={kind}", fix, passing=(OSError,)):
            FORMATS[kind](trained, partial)
    except OSError as error:
        fix = "free some space or name another folder"
        raise UserError(f"{out}: cannot write: {error.strerror}; {fix}") from error
    return sorted(path for path in out.rglob("*") if path.is_file())


def saved_model(trained: Trained, folder: pathlib.Path) -> None:
    """Writes a SavedModel with the signature `serving_default`, and labels or vocabulary in EXTRA."""
    serving, module = trained.serving, tf.Module()
    specs = list(serving.inputs.values())
    module.answer = tf.function(serving.function, input_signature=specs, autograph=False)
    signature = module.answer.get_concrete_function()
    # Only variables that the graph reads: no optimizer slots and no per-replica moments.
    module.weights, module.resources = list(trained.weights().values()), list(serving.resources)
    read, weights = {id(x) for x in signature.captured_inputs}, {id(v) for v in module.weights}
    module.others = [v for v in trained.model.variables if id(v.handle) in read and id(v) not in weights]
    tf.saved_model.save(module, os.fspath(folder), {"serving_default": signature})
    extra = folder / EXTRA
    about = {**trained.about(), WEIGHTS: list(trained.weights())}
    if serving.kind in WITH_CODEC:
        about[LENGTH] = trained.config.serving_length
    write_atomically(extra / ABOUT, json.dumps(about, indent=1, ensure_ascii=False).encode())
    for name, content in trained.assets.items():
        write_atomically(extra / name, content)


def safetensors(trained: Trained, folder: pathlib.Path) -> None:
    """Writes the weights to one file, in TensorFlow's layouts; its metadata holds everything else as text."""
    library = _library("safetensors.numpy", "safetensors")
    arrays = {name: np.ascontiguousarray(v.numpy()) for name, v in trained.weights().items()}
    metadata = {name: v if isinstance(v, str) else json.dumps(v) for name, v in trained.about().items()}
    metadata |= {"assets": json.dumps({n: content.decode() for n, content in trained.assets.items()})}
    write_atomically(folder / "model.safetensors", library.save(arrays, {**metadata, "format": "tf"}))


def stablehlo(trained: Trained, folder: pathlib.Path) -> None:
    """Writes only the network, as a portable StableHLO artifact; `model.json` lists the order of its arguments."""
    from common.distributed.stablehlo import lower

    serving = trained.serving
    specs = list(serving.core.values())
    compiled = tf.function(lambda batch: serving.features(*batch), jit_compile=True, autograph=False)
    example = tuple(tf.zeros(spec.shape, spec.dtype) for spec in specs)
    lowered = lower(compiled, example, "network")
    by_handle = {id(v.handle): name for name, v in trained.weights().items()}
    by_handle |= {id(v.handle): v.name for v in trained.model.variables if id(v.handle) not in by_handle}
    arguments, arrays = list(serving.core), {}
    for place, captured in enumerate(lowered.captured):
        name = by_handle.get(id(captured), f"constant.{place}")
        arguments.append(name)
        if captured.dtype == tf.resource:
            dtype = tf.as_dtype(captured._handle_data.shape_and_type[0].dtype)
            captured = tf.raw_ops.ReadVariableOp(resource=captured, dtype=dtype)
        arrays[name] = np.asarray(captured)
    write_atomically(folder / "model.stablehlo", lowered.artifact())
    with open(folder / "weights.npz", "wb") as file:
        np.savez(file, **arrays)
    results = [spec.name for spec in tf.nest.flatten(lowered.returned)]
    about = {**trained.about(), "arguments": arguments, "results": results}
    write_atomically(folder / "model.json", json.dumps(about, indent=1, ensure_ascii=False).encode())
    _add_recipe(trained, folder)


def onnx(trained: Trained, folder: pathlib.Path) -> None:
    """Writes the network alone as ONNX, with tf2onnx; ABOUT and, for pictures, recipe.py describe its inputs.

    Raises UserError if tf2onnx is missing or cannot express the network, or the folder cannot be written.
    """
    library = _library("tf2onnx", "onnx")
    serving = trained.serving
    # A classifier takes any number of inputs at once; the other networks have results of one size for one input.
    free = serving.kind in ("classes", "words", "continuation")
    specs = [
        tf.TensorSpec([None, *s.shape[1:]] if free else s.shape, s.dtype, name)
        for name, s in serving.core.items()
    ]
    function = tf.function(serving.features, input_signature=specs, autograph=False)
    try:
        model, _ = library.convert.from_function(function, input_signature=specs, opset=OPSET)
    except (ValueError, TypeError, NotImplementedError, RuntimeError, KeyError) as error:
        raise UserError(
            f"--format=onnx: tf2onnx cannot express this network ({str(error).partition(chr(10))[0][:200]}); "
            "use --format=stablehlo or savedmodel"
        ) from error
    write_atomically(folder / "model.onnx", model.SerializeToString())
    write_atomically(folder / ABOUT, json.dumps(trained.about(), indent=1, ensure_ascii=False).encode())
    _add_recipe(trained, folder)


FORMATS: dict[str, Callable[[Trained, pathlib.Path], None]] = {
    "savedmodel": saved_model, "safetensors": safetensors, "stablehlo": stablehlo, "onnx": onnx,
}  # fmt: skip


def _add_recipe(trained: Trained, folder: pathlib.Path) -> None:
    """Puts the program that prepares pictures beside a network that takes their pixels."""
    if trained.serving.kind in ("classes", "objects"):
        shutil.copy(pathlib.Path(__file__).with_name("recipe.py"), folder)


def _library(name: str, extra: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        lacking = f"{name.partition('.')[0]} is not installed; pip install timetotrain[export]"
        raise UserError(f"--format={extra}: {lacking}") from error
