"""Our contender of video.py: inference or training steps of a video network on a resident batch.

Arguments: "infer" or "train", manifest ({"config": a tsm_kinetics configuration, ...}), as _torch_images.py's. Training
starts from uint8 pixels, which the step normalises, and runs in the fused loop, as `python -m tsm_kinetics` does.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
importlib.import_module("common")  # Sets what TensorFlow reads as it is imported, as in a run.

import tensorflow as tf  # noqa: E402
from _serve import serve  # noqa: E402

from common.config.digest import from_dict  # noqa: E402
from common.distributed import replicas  # noqa: E402
from common.layers.precision import precision  # noqa: E402
from common.run import allocator  # noqa: E402
from common.train.describe import parameters  # noqa: E402
from common.train.loop import Loop  # noqa: E402
from tsm_kinetics import model  # noqa: E402
from tsm_kinetics.config import Config  # noqa: E402
from tsm_kinetics.task import Task  # noqa: E402

Run = Callable[[int], None]  # Runs that many steps.


def infer(config: Config) -> tuple[Run, int]:
    """Logits of normalised clips."""
    allocator.keep_freed()
    policy = precision(config.precision)
    network = model.build(config, replicas.make(config), policy)
    shape = [config.global_batch_size, config.frames, config.image_size, config.image_size, 3]
    clips = tf.cast(tf.random.stateless_normal(shape, [1, 2]), policy.compute)
    step = tf.function(lambda: network(clips, training=False), autograph=False)

    def run(steps: int) -> None:
        for _ in range(steps):
            step().numpy()

    return run, parameters(network)


def train(config: Config) -> tuple[Run, int]:
    """The fused loop."""
    allocator.keep_freed()
    loop = Loop(Task(config, None), replicas.make(config))
    batches, evaluation = loop._synthetic(True), loop._synthetic(False)

    def run(steps: int) -> None:
        loop._call(batches, evaluation, steps, 0)

    return run, parameters(loop.state.model)


def main() -> None:
    config = from_dict(Config, json.loads(sys.argv[2])["config"])
    run, count = {"infer": infer, "train": train}[sys.argv[1]](config)
    serve(run, version=tf.__version__, parameters=count)


if __name__ == "__main__":
    main()
