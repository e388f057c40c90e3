"""Runs a program of four replicas, with every kind of collective, by several releases of jax: `make e2e-jax`.

Each release gets an environment of its own, with jax and numpy alone.
"""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from common.distributed import stablehlo
from common.distributed.replicas.xla import Xla
from tests.common.distributed.replicas.test_replicas import CALLS, GROUPS, N, inputs, numpy_collective

ROOT = pathlib.Path(__file__).resolve().parents[3]
# The last of every minor release from 0.7 on, up to the one of pyproject.toml.
RELEASES = ("0.7.2", "0.8.3", "0.9.2", "0.10.2")


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """A folder with a program that has all of `CALLS` for all of `GROUPS`, and adds to a state."""
    folder, backend, values = tmp_path_factory.mktemp("program"), Xla(N), inputs()
    calls = [(name, groups, options) for groups in GROUPS.values() for name, options in CALLS]
    state = tf.Variable(tf.zeros([5, 7], tf.float64))

    @tf.function(jit_compile=True, autograph=False)
    def every(x):
        state.assign_add(tf.fill([5, 7], backend.all_reduce(x)[0, 0, 0]))
        return [getattr(backend, name)(x, groups=groups, **options) for name, groups, options in calls]

    lowered = stablehlo.lower(every, tf.constant(values[0]), "program")
    (folder / "program.mlir.bc").write_bytes(lowered.artifact(partitioned=True))
    donated = {argument: result for result, argument in lowered.aliases.items()}
    about = {"replicas": N, "arguments": lowered.arguments, "results": lowered.results, "donated": donated}
    (folder / "about.json").write_text(json.dumps(about))
    (place,) = donated
    given = {place: [np.zeros([5, 7])] * N, 1 - place: values}
    # Two calls: the state has twice what one adds.
    twice = [np.full([5, 7], 2 * sum(values)[0, 0, 0])] * N
    expected = [
        *(numpy_collective(name, values, groups, **options) for name, groups, options in calls),
        twice,
    ]
    arrays = {f"argument {i}": np.stack(rows) for i, rows in given.items()}
    arrays |= {f"result {i}": np.stack(rows) for i, rows in enumerate(expected)}
    np.savez(folder / "values.npz", **arrays)
    return folder


def run(python, program):
    command = [python, "-m", "tests.common.distributed.on_jax", program]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": "", "XLA_FLAGS": ""}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_the_jax_of_this_environment(program):
    pytest.importorskip("jax", reason="jax is not installed (make setup)")
    assert "memory is reused" in run(sys.executable, program)


@pytest.mark.e2e
@pytest.mark.parametrize("release", RELEASES)
def test_a_release_of_jax(program, tmp_path, release):
    subprocess.run([sys.executable, "-m", "venv", tmp_path], check=True)
    python = tmp_path / "bin/python"
    install = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    done = subprocess.run([*install, f"jax=={release}", f"jaxlib=={release}"], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"jax {release} does not install here: {done.stderr.strip().splitlines()[-1]}")
    print(run(python, program))
