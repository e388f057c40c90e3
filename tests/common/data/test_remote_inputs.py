"""No input of a preset for TPUStrategy calls back into Python: the hosts of a pod have no access to the client's."""

import dataclasses
import importlib

import numpy as np
import pytest
import tensorflow as tf

from common.config.benchmarks import NAMES
from common.detection import drawing
from common.distributed.replicas.base import Shard

FEW = drawing.Pictures(train_images=16, eval_images=5, train_files=2, eval_files=1)
# Operations that call a Python function (tensorflow/python/ops/script_ops.py, data/ops/from_generator_op.py).
CALLBACKS = {"PyFunc", "PyFuncStateless", "EagerPyFunc", "GeneratorDataset"}


def presets(benchmark):
    return importlib.import_module(f"{benchmark}.presets").PRESETS


def pods(benchmark):
    return [config for config in presets(benchmark).values() if config.replicas == "tpu"]


BENCHMARKS = [name for name in NAMES if pods(name)]


def operations(data: tf.data.Dataset) -> set[str]:
    """The operations of a data set's graph and of all functions in it."""
    graph = tf.raw_ops.DatasetToGraphV2(input_dataset=data._variant_tensor, external_state_policy=1).numpy()
    graph = tf.compat.v1.GraphDef.FromString(graph)
    return {node.op for part in (graph.node, *(f.node_def for f in graph.library.function)) for node in part}


def test_the_walk_finds_callbacks():
    plain = tf.data.Dataset.range(3)
    assert not operations(plain.map(lambda x: x + 1)) & CALLBACKS
    nested = plain.flat_map(
        lambda n: tf.data.Dataset.range(n).map(lambda x: tf.py_function(abs, [x], tf.int64))
    )
    assert operations(nested) & CALLBACKS == {"EagerPyFunc"}
    assert operations(plain.map(lambda x: tf.numpy_function(np.abs, [x], tf.int64))) & CALLBACKS == {"PyFunc"}
    dataset = tf.data.Dataset.from_generator(lambda: iter([1]), output_signature=tf.TensorSpec([], tf.int32))
    assert operations(dataset) & CALLBACKS


def test_every_benchmark_of_the_pods_paper_is_walked():
    assert set(BENCHMARKS) == {"resnet", "ssd", "maskrcnn", "transformer", "gnmt"}


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_an_input_of_a_pod_calls_no_python(benchmark, tmp_path):
    few = [FEW] if benchmark in ("ssd", "maskrcnn") else []
    importlib.import_module(f"{benchmark}.tiny").generate(tmp_path, *few)
    config = presets(benchmark)["cpu-tiny"]
    make = importlib.import_module(f"{benchmark}.task").Task
    for cache in {pod.data.cache for pod in pods(benchmark) if hasattr(pod.data, "cache")} or {None}:
        data = dataclasses.replace(config.data, cache=cache) if cache is not None else config.data
        task = make(dataclasses.replace(config, data=data), tmp_path)
        assert not operations(task.train_input(Shard(), config.global_batch_size, 0)) & CALLBACKS
        assert not operations(task.eval_input(Shard(), config.eval_batch_size)) & CALLBACKS
