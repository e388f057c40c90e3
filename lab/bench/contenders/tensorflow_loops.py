"""What trains the contenders of TensorFlow: the fused loop of `python -m BENCHMARK`, or Keras `fit`.

Both train on data that are ready in memory. `fit` runs one epoch of N steps, and nothing else in the measured time.
"""

import json
from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tf_keras

from common.config.digest import from_dict
from common.config.schema import RunConfig
from common.data import pipeline
from common.distributed import replicas
from common.train.describe import parameters
from common.train.loop import Loop
from common.train.task import Task
from timetotrain.run import allocator

Run = Callable[[int], object]  # Runs N steps.
Made = tuple[Run, tf.Module]  # How a contender runs, and its network.


def maker(
    kind: type[RunConfig], **contenders: Callable[[Any], Made]
) -> Callable[[str, str, str], tuple[Run, dict[str, object]]]:
    """Returns the `make` of a module.

    Args:
      kind: class of the configuration that the manifest ({"config": its fields}) holds.
      **contenders: {name, or a mode such as "infer": function of the configuration}.
    """

    def make(name: str, mode: str, manifest: str) -> tuple[Run, dict[str, object]]:
        """Returns (function that runs N steps, facts about the contender)."""
        make_run = contenders.get(mode) or contenders[name]
        run, network = make_run(from_dict(kind, json.loads(manifest)["config"]))
        return run, {"version": tf.__version__, "parameters": parameters(network)}

    return make


def fused_loop(
    make: Callable[[RunConfig, None], Task], config: RunConfig, precompiled: bool = False
) -> tuple[Callable[[int], float], tf_keras.Model]:
    """Returns (function that trains N steps and returns the last loss, the network).

    Args:
      make: the benchmark's `Task`, or a function that makes one from the configuration without data.
      config: a configuration for one replica.
      precompiled: compiles before the first call, as a run does.
    """
    allocator.keep_freed()
    loop = Loop(make(config, None), replicas.make(config))
    if precompiled:
        loop.compile()
    train, evaluation = loop.synthetic(True), loop.synthetic(False)
    return lambda steps: float(loop.call(train, evaluation, steps, 0).losses[-1]), loop.state.model


def set_policy(precision: str) -> None:
    """Sets Keras's global policy for "fp32" or "bf16"."""
    tf_keras.mixed_precision.set_global_policy({"fp32": "float32", "bf16": "mixed_bfloat16"}[precision])


def fit(model: tf_keras.Model, data: tf.data.Dataset) -> Callable[[int], float]:
    """Returns a function that trains N steps and returns the last loss.

    Every call makes an iterator and drops it. With autotuning a call would take 1.27, 2.55, 5.11 or 10.23 seconds,
    whichever comes next (`common/data/pipeline.py`). The data is ready in memory and needs no tuning.
    """
    ready = pipeline.untuned(data)
    return lambda steps: model.fit(ready, steps_per_epoch=steps, verbose=0).history["loss"][-1]
