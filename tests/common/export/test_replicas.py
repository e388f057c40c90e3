"""Tests programs of one of N replicas, run on N CPU devices, against the backend mirrored: float64 to 1e-9."""

import dataclasses
import functools
import os
import subprocess

import numpy as np
import pytest

from common.config.optimizer import Adam, Lars
from common.config.schema import Communication
from common.distributed.replicas.mirrored import Mirrored
from common.export import reference
from common.export.steps import Steps, to_export
from common.export.write import write
from tests.common.distributed.updates import buckets_of
from tests.common.export import network
from tests.common.export.test_export import PYTHON, ROOT, needs_jax

LARS = Lars(base_learning_rate=2.0, weight_decay=1e-3)
ADAM = Adam(base_learning_rate=0.01, epsilon=1e-8)
# Replicas, the configuration, and the collectives that the training step must hold: (operation, groups, size).
CASES = {
    "flat sums, a span of two replicas": (2, {"batch_norm_span": 4}, {("all_reduce", 1, 2)}),
    "sharded update, 2d, sums in bf16": (
        4,
        {
            "batch_norm_span": 4,
            "optimizer": LARS,
            "communication": Communication("2d", wire="bf16_sum", weight_update="sharded"),
        },
        {("all_reduce", 2, 2), ("reduce_scatter", 2, 2), ("all_gather", 2, 2)},
    ),
    "rows on two replicas, 2d sums": (
        4,
        {"partitions": 2, "communication": Communication("2d")},
        {("collective_permute", 2, 2), ("reduce_scatter", 2, 2), ("all_reduce", 2, 2), ("all_gather", 2, 2)},
    ),
    "sharded update, accumulation": (
        8,
        {
            "global_batch_size": 32,
            "accumulation_steps": 2,
            "optimizer": ADAM,
            "communication": Communication(weight_update="sharded"),
        },
        {("reduce_scatter", 1, 8), ("all_gather", 1, 8)},
    ),
    "sharded update in blocks": (
        8,
        {"optimizer": LARS, "communication": Communication(weight_update="blocks")},
        {("all_reduce", 1, 8)},
    ),
}
MORE = {
    "2d sums": (8, {"communication": Communication("2d")}, {("reduce_scatter", 4, 2)}),
    "sums in bf16": (2, {"communication": Communication(wire="bf16_sum")}, {("all_reduce", 1, 2)}),
    "sharded update, sums in bf16": (
        2,
        {"communication": Communication(wire="bf16_sum", weight_update="sharded")},
        {("reduce_scatter", 1, 2), ("all_gather", 1, 2)},
    ),
    "rows on four, spans of eight": (
        8,
        {"partitions": 4, "batch_norm_span": 4},
        {("all_reduce", 1, 8), ("collective_permute", 6, 2)},
    ),
    "virtual groups": (2, {"batch_norm_span": 1}, {("all_reduce", 1, 2)}),
}


@pytest.fixture(autouse=True)
def several_buckets():
    with buckets_of(200):
        yield


def exported(name, folder):
    """(configuration, manifest) of a case."""
    number, changes, _ = {**CASES, **MORE}[name]
    config = network.config(number, **changes)
    return config, write(network.Task(to_export(config)), config, str(folder), "none", print)


@functools.cache
def replayed(folder, names):
    """Exports and runs the cases `names` in one process; returns {name: (configuration, manifest, folder)}."""
    exports = {name: (*exported(name, folder / str(i)), folder / str(i)) for i, name in enumerate(names)}
    run_on_devices([place for _, _, place in exports.values()])
    return exports


def run_on_devices(folders):
    """Runs the programs of exports on CPU devices, in a process of its own."""
    command = [PYTHON, "-m", "tests.common.export.on_devices", *map(str, folders)]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1500, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]


def check(task, config, manifest, folder):
    """Compares losses, state and evaluation of the replayed programs with those of `mirrored`."""
    steps = Steps(task, config)
    expected = reference.OfSeveral(steps, Mirrored(config.num_replicas))
    numbers = {}
    for training in (True, False):
        kind = "train" if training else "eval"
        programs = [p for p in manifest["programs"] if p["kind"] == kind]
        for program, batch in zip(programs, steps.batches(training), strict=bool(programs)):
            actual = np.load(folder / f"{program['name']}.npz")
            expected.reset()
            if training:
                numbers[program["name"]] = check_step(expected, steps, batch, actual, manifest)
            else:
                outputs = expected.evaluate(batch).items()
                numbers[program["name"]] = max(
                    error(actual[f"output {n}".replace("/", ".")], x) for n, x in outputs
                )
    print(numbers)
    return numbers


def check_step(expected, steps, batch, actual, manifest):
    """Returns the largest errors of a training program: of the first loss, of the state after it."""
    loss = expected.train(batch)
    loss_error = abs(actual["losses"][0] - loss) / abs(loss)
    values, worst, moved = expected.values(), 0.0, 0
    # Pairs by position, because Keras continues the layer numbers within a process.
    for about, (name, after) in zip(
        [a for a in manifest["state"] if a["role"] != "replica"], values.items(), strict=True
    ):
        changed = not np.array_equal(after, np.broadcast_to(steps.state[name].value, after.shape))
        moved += changed
        key = f"state {about['name']}".replace("/", ".")
        if key in actual:
            worst = max(worst, error(actual[key], after))
        else:
            assert not changed, f"{name} is no part of the program"
    assert loss_error <= 1e-9 and worst <= 1e-9, (loss_error, worst)
    assert moved > len(steps.model.trainable_variables)
    second = abs(actual["losses"][1] - expected.train(batch)) / abs(loss)
    assert second <= 1e-6
    return loss_error, worst


def error(actual, expected):
    assert actual.shape == expected.shape
    return np.linalg.norm(actual.astype(np.float64) - expected) / (np.linalg.norm(expected) or 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("replicas")


def check_case(name, folder, names):
    config, manifest, place = replayed(folder, names)[name]
    exchanges = {(e["operation"], e["groups"], e["size"]) for e in manifest["programs"][0]["exchanges"]}
    assert {**CASES, **MORE}[name][2] <= exchanges
    numbers = check(network.Task(to_export(config)), config, manifest, place)
    assert numbers["eval"] <= 1e-9


@needs_jax
@pytest.mark.parametrize("name", CASES)
def test_a_technique_on_devices_equals_mirrored(name, folder):
    check_case(name, folder, tuple(CASES))


@needs_jax
@pytest.mark.e2e
@pytest.mark.parametrize("name", MORE)
def test_more_techniques_on_devices_equal_mirrored(name, folder):
    check_case(name, folder / "more", tuple(MORE))


def test_the_manifest_says_what_each_replica_has_alone(folder):
    _, manifest = exported("sharded update, 2d, sums in bf16", folder / "about")
    about = {a["name"]: a for a in manifest["state"]}
    roles = {
        role: {a["per_replica"] for a in about.values() if a["role"] == role} for role in ("weight", "slot")
    }
    assert roles == {"weight": {False}, "slot": {True}}
    assert [a["name"] for a in about.values() if a["role"] == "replica"] == ["replica"]
    assert {a["per_replica"] for name, a in about.items() if "moving" in name or "draws" in name} == {True}
    assert (manifest["num_replicas"], manifest["partitions"], manifest["batch"]["train"]) == (4, 1, 2)
    inputs = manifest["programs"][0]["inputs"]
    assert {a["per_replica"] for a in inputs} == {True} and {tuple(a["shape"])[0] for a in inputs} == {2}


def test_a_single_replica_of_many_is_exported_alone(folder):
    config = dataclasses.replace(network.config(4), replicas="single")
    manifest = write(network.Task(to_export(config)), config, str(folder / "alone"), "none", print)
    assert (manifest["num_replicas"], manifest["replicas_of_the_run"]) == (1, 4)
    assert manifest["programs"][0]["exchanges"] == []
    assert manifest["programs"][0]["inputs"][0]["shape"][0] == 2


def test_a_reference_of_many_replicas_is_not_computed():
    lines = []
    assert reference.prepared(9, "float64", lines.append) is None
    assert lines == ["no reference: 9 replicas, and at most 8 are computed here"]
    assert reference.prepared(8, "float64", lines.append).num_replicas == 8 and len(lines) == 1
