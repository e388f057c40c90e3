"""Models the input pipeline: how fast hosts prepare examples, and the first epoch's extra seconds."""

from __future__ import annotations

import dataclasses

from systems.predict.hardware import Machine

# Images per second and hardware thread. A core produces 577 augmented 224-pixel images with tf-models' pipeline
# (lab/bench/results/resnet_input.json); a core has two threads. The other rates scale with the pixels decoded.
_IMAGES = 577.5 / 2
RATES = {
    "resnet": _IMAGES,
    "ssd": _IMAGES / 2,  # decoded whole, colors changed
    "maskrcnn": _IMAGES / 8,  # scaled to 800 x 1333
    "tsm_kinetics": _IMAGES / 8,  # eight frames per clip
}
DEFAULT_RATE = 1e5  # Sentence pairs: 14 M per second on a host with 144 threads.
# Bytes of a data set, and bytes/s that a host reads from storage; images then stay in memory. On tpu-v3-32 (four
# hosts), ImageNet's first epoch takes 72 s longer than later ones of 41 s (its published v0.6 log).
SIZES = {"resnet": 144e9, "ssd": 19e9, "maskrcnn": 19e9}
STORAGE = {"tpu-v3": 144e9 / 4 / (72 + 41), "v100": 2e9, "h200": 2e9}


@dataclasses.dataclass(frozen=True)
class Input:
    """Seconds to prepare a global batch (`step`), and the first epoch's extra seconds compared with later epochs."""

    step: float
    first_epoch: float


def seconds(
    machine: Machine,
    benchmark: str,
    batch: int,
    steps: float,
    frames: float,
    decoded_cache: bool,
    step: float,
) -> Input:
    """Models the seconds that the hosts need.

    Args:
      steps: steps per epoch.
      frames: an example's size relative to the rate's example, e.g. 4 for 32 frames against 8.
      decoded_cache: images stay decoded in memory, so later epochs decode nothing.
      step: seconds of a training step that does not wait for input.
    """
    rate = RATES.get(benchmark, DEFAULT_RATE) / frames * machine.threads * machine.nodes
    prepare = batch / rate
    reading = SIZES.get(benchmark, 0.0) / (STORAGE[machine.family] * machine.nodes)
    first = max(reading, steps * prepare) - steps * max(step, 0.0 if decoded_cache else prepare)
    return Input(0.0 if decoded_cache else prepare, max(0.0, first))
