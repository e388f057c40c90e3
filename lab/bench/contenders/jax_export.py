"""Exports a JAX contender's training step in this project's format: `python -m lab.bench.contenders.jax_export`.

Arguments: the contender's module, the folder, keywords of `make_step` as JSON, and the platform, "tpu" by default. The
folder gets `train.mlir.bc` and a manifest for systems/compile, so that both sides take the same path into the same
compiler. Needs an interpreter with flax.
"""

from __future__ import annotations

import importlib
import json
import sys
from importlib.metadata import version
from pathlib import Path

import jax
from jax import export


def write(module: str, folder: Path, keywords: dict, platform: str = "tpu") -> None:
    """Exports the step for a jax platform; needs no device."""
    step, arguments, donated = importlib.import_module(f"lab.bench.contenders.{module}").make_step(**keywords)
    exported = export.export(jax.jit(step), platforms=[platform])(*arguments)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "train.mlir.bc").write_bytes(exported.mlir_module_serialized)
    names = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(arguments)[0]]
    state = len(jax.tree.leaves(arguments[:donated]))
    arguments_used = exported.module_kept_var_idx
    program = {
        "name": "train",
        "file": "train.mlir.bc",
        "inputs": [{"name": names[i], "role": "input"} for i in arguments_used if i >= state],
        "arguments": [
            {
                "name": names[i],
                "shape": list(exported.in_avals[i].shape),
                "dtype": exported.in_avals[i].dtype.name,
            }
            for i in arguments_used
        ],
        # The step's first results are the new values of its first arguments.
        "results": [{"updates": names[i] if i < state else None} for i in range(len(exported.out_avals))],
    }
    manifest = {
        "num_replicas": 1,
        "state": [{"name": names[i], "role": "state"} for i in arguments_used if i < state],
        "constants": [],
        "programs": [program],
        "versions": {package: version(package) for package in ("jax", "flax", "optax")},
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))


if __name__ == "__main__":
    write(sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3]), *sys.argv[4:])
