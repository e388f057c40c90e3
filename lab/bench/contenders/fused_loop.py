"""Our contender: the fused loop of `python -m BENCHMARK`, on one batch of noise that stays in memory."""

from __future__ import annotations

from collections.abc import Callable

import tf_keras

from common.config.schema import RunConfig
from common.distributed import replicas
from common.train.loop import Loop
from common.train.task import Task
from timetotrain.run import allocator


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
    train, evaluation = loop._synthetic(True), loop._synthetic(False)
    return lambda steps: float(loop._call(train, evaluation, steps, 0).losses[-1]), loop.state.model
