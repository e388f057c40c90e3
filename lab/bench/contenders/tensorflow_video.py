"""Our contender of steps.py's video networks: inference or training steps of a video network on one batch in memory.

Arguments: "ours", "infer" or "train", manifest ({"config": a tsm_kinetics configuration, ...}), as for torch_step.py.
Training runs in the fused loop of `python -m tsm_kinetics`; its step starts from uint8 pixels and normalizes them.
"""

from functools import partial

import tensorflow as tf

from common.distributed import replicas
from common.layers.precision import precision
from lab.bench.contenders.tensorflow_loops import Made, fused_loop, maker
from timetotrain.run import allocator
from tsm_kinetics import model
from tsm_kinetics.config import Config
from tsm_kinetics.task import Task


def infer(config: Config) -> Made:
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


make = maker(Config, infer=infer, ours=partial(fused_loop, Task))
