"""Our contender of steps.py's video networks: inference or training steps of a video network on one batch in memory.

Arguments: "ours", "infer" or "train", manifest ({"config": a tsm_kinetics configuration, ...}), as for torch_step.py.
Training runs in the fused loop of `python -m tsm_kinetics`; its step starts from uint8 pixels and normalizes them.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import tensorflow as tf
import tf_keras

from common.config.digest import from_dict
from common.distributed import replicas
from common.layers.precision import precision
from common.train.describe import parameters
from lab.bench.contenders.tensorflow_loops import fused_loop
from timetotrain.run import allocator
from tsm_kinetics import model
from tsm_kinetics.config import Config
from tsm_kinetics.task import Task

Run = Callable[[int], object]  # Runs N steps.


def infer(config: Config) -> tuple[Run, tf_keras.Model]:
    """Computes logits of normalized clips."""
    allocator.keep_freed()
    policy = precision(config.precision)
    network = model.build(config, replicas.make(config), policy)
    shape = [config.global_batch_size, config.frames, config.image_size, config.image_size, 3]
    clips = tf.cast(tf.random.stateless_normal(shape, [1, 2]), policy.compute)
    step = tf.function(lambda: network(clips, training=False), autograph=False)

    def run(steps: int) -> None:
        for _ in range(steps):
            step().numpy()

    return run, network


def train(config: Config) -> tuple[Run, tf_keras.Model]:
    """The fused loop."""
    return fused_loop(Task, config)


MODES = {f.__name__: f for f in (infer, train)}


def make(_: str, mode: str, manifest: str) -> tuple[Run, dict[str, object]]:
    """Returns (function that runs N steps, facts about the contender)."""
    run, network = MODES[mode](from_dict(Config, json.loads(manifest)["config"]))
    return run, {"version": tf.__version__, "parameters": parameters(network)}
