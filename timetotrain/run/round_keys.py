"""What a run's round wants to read: of the system in the header, of the progress in other lines. TensorFlow-free."""

import dataclasses
from typing import Any

from common.config.run_length import Interval, RunLength
from common.config.schema import RunConfig

_EPOCHS = ("0.6.0", "0.7.0")  # The rounds that count epochs and know no keys about precision.
_WITHOUT = (*_EPOCHS, "5.1.0")
# mlperf_logging 4.1.68 compliance_checker/training_6.1.0/common.yaml, `lowest_numerical_precision_in_linear`.
_WORDS = {"fp64": "fp64", "fp32": "fp32", "bf16": "bfloat16", "fp16": "fp16"}


def header(config: RunConfig) -> dict[str, Any]:
    """Returns the keys that the round asks of every benchmark, besides those of 0.6 and 0.7.

    `ruleset` is this project's own: without it a log of 5.1 reads like one of 6.0. Sums are in float32, or float64,
    unless `communication.wire` makes them shorter; sharded weights travel in the precision of products. Every replica
    computes the whole network, so the four kinds of parallelism that divide it are 1.
    """
    if config.ruleset in _EPOCHS:
        return {}
    keys: dict[str, Any] = {"ruleset": config.ruleset}
    if config.ruleset in _WITHOUT:
        return keys
    computed = _WORDS[config.precision]
    sums = "bfloat16" if config.communication.wire != "full" else "fp64" if computed == "fp64" else "fp32"
    if config.sends_weights and sums == "fp32":
        sums = computed
    precisions = {"linear": computed, "attn": computed, "comm": sums}
    keys |= {f"lowest_numerical_precision_in_{place}": word for place, word in precisions.items()}
    keys |= {f"{kind}_parallelism": 1 for kind in ("tensor", "pipeline", "context", "expert")}
    return keys | {
        "micro_batch_size": config.micro_batch_size,
        "config_filename": f"{config.benchmark}/presets.py",
    }


@dataclasses.dataclass(frozen=True)
class Epochs:
    """The metadata of a log that counts epochs, from 1."""

    def of_block(self, interval: Interval, started: bool) -> dict[str, Any]:
        """Returns the metadata of block_start (`started`) and block_stop."""
        return {"first_epoch_num": interval.first_epoch, "epoch_count": interval.epoch_count}

    def of_evaluation(self, interval: Interval) -> dict[str, Any]:
        """Returns the metadata of an evaluation after `interval`."""
        return {"epoch_num": interval.last_epoch}


@dataclasses.dataclass(frozen=True)
class Samples:
    """The metadata of a log that counts trained examples, and with `epochs` also the part of an epoch that they are."""

    run_length: RunLength
    epochs: bool

    def of_block(self, interval: Interval, started: bool) -> dict[str, Any]:
        """Returns the metadata of block_start (`started`) and block_stop."""
        return {
            "samples_count": (interval.first_step if started else interval.end_step)
            * self.run_length.global_batch_size
        }

    def of_evaluation(self, interval: Interval) -> dict[str, Any]:
        """Returns the metadata of an evaluation after `interval`."""
        samples = interval.end_step * self.run_length.global_batch_size
        return {"samples_count": samples} | (
            {"epoch_num": samples / self.run_length.num_examples} if self.epochs else {}
        )


def place_of(config: RunConfig, run_length: RunLength) -> Epochs | Samples:
    """Returns how the log of a run says where it is."""
    if config.ruleset in _EPOCHS:
        return Epochs()
    from compliance.log.preflight import progress_unit

    unit = progress_unit(config.ruleset, config.division, config.benchmark)
    return Samples(run_length, epochs=unit == "epoch_num")
