"""Every benchmark's tiny network as a program of N replicas on N CPU devices, against mirrored: `make e2e-pods`."""

import dataclasses
import importlib

import pytest

from common.config.schema import Communication
from common.export.steps import to_export
from common.export.write import write
from tests.common.export.test_export import SMALL, needs_jax
from tests.common.export.test_replicas import check, run_on_devices

SHARDED = Communication("2d", weight_update="sharded")
BLOCKS = Communication(weight_update="blocks")
# Benchmark, replicas, partitions and what else of the configuration.
CASES = {
    "mnist, eight replicas, flat": ("mnist", 8, {"dropout": 0.2}),
    "mnist, a loop of LSTM steps": ("mnist", 2, {"model": "lstm"}),
    "ptb, four replicas, sharded": ("ptb", 4, {"communication": Communication(weight_update="sharded")}),
    "transformer, four replicas, sharded": ("transformer", 4, {"communication": SHARDED}),
    "transformer, four replicas, in blocks": ("transformer", 4, {"communication": BLOCKS}),
    "gnmt, two replicas, bf16 wire": ("gnmt", 2, {"communication": Communication(wire="bf16_sum")}),
    "resnet, two replicas, a span": ("resnet", 2, {"batch_norm_span": 4}),
    "resnet, rows on two of four": ("resnet", 4, {"partitions": 2, "batch_norm_span": 4}),
    "tsm, two replicas": ("tsm_kinetics", 2, {}),
    "ssd, two replicas": ("ssd", 2, {}),
    "ssd, rows on two": ("ssd", 2, {"partitions": 2}),
    "maskrcnn, two replicas": ("maskrcnn", 2, {}),
    "maskrcnn, rows and heads on two": ("maskrcnn", 2, {"partitions": 2}),
}
# Examples of a group of replicas.
EACH = {"gnmt": 2, "mnist": 4}


def configured(benchmark, number, changes):
    """The configuration of a case, in float64."""
    presets = importlib.import_module(f"{benchmark}.presets").PRESETS
    batch = EACH.get(benchmark, 2) * (number // changes.get("partitions", 1))
    sizes = {"global_batch_size": batch, "eval_batch_size": batch}
    small = {**SMALL[benchmark], **changes, **sizes}
    config = dataclasses.replace(
        presets["cpu-tiny"], precision="fp64", replicas="mirrored", num_replicas=number, **small
    )
    config.validate()
    return config


@needs_jax
@pytest.mark.e2e
@pytest.mark.parametrize("name", CASES)
def test_a_benchmark_on_devices_equals_mirrored(name, tmp_path):
    benchmark, number, changes = CASES[name]
    config = configured(benchmark, number, changes)
    task_of = importlib.import_module(f"{benchmark}.task").Task
    folder = tmp_path / benchmark
    manifest = write(task_of(to_export(config), None), config, str(folder), "none", print)
    run_on_devices([folder])
    numbers = check(task_of(to_export(config), None), config, manifest, folder)
    print(name, numbers, manifest["refused"])
    assert max((e for program, e in numbers.items() if program.startswith("eval")), default=0) <= 1e-9
    assert manifest["refused"] == {}
