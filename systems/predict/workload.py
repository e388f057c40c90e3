"""Describes a training job for the cost model; callers fill it from a preset or a published row."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from systems.predict import blocks

BENCHMARKS = ("resnet", "ssd", "maskrcnn", "transformer", "gnmt", "tsm_kinetics", "mnist", "ptb")


@dataclasses.dataclass(frozen=True)
class Workload:
    """Attributes:
    benchmark, network: names; `network` identifies the costs.
    recipe: the round whose rules and hyperparameters determine the number of epochs: "v0.6", "v0.7", "fixed".
    batch: examples per step, over all replicas.
    cores: replicas, including partitions; groups of `partitions` cores share their examples.
    accumulation: micro-batches per step.
    span: number of examples that share batch-norm statistics; 0: a replica's own.
    precision: "bf16", "fp16", "fp32".
    wire: bytes per gradient element in the gradient sum.
    shard_update: weight-update sharding.
    optimizer: "sgd", "lars", "adam", "lazy_adam".
    buckets: collectives per gradient sum.
    examples: examples per epoch, in the unit of `batch`.
    eval_examples, eval_batch: number of examples, and batch, in an evaluation.
    first_evaluation, evaluation_every: in epochs.
    earlier_evaluations: epochs of evaluations before `first_evaluation`, at irregular intervals.
    epochs: number that the recipe fixes; None: predicted from the published points.
    decode_steps, beams: steps and width of evaluation's beam search; decode_steps is 0 without one.
    host_evaluation: seconds of an evaluation outside the blocks; training hides all but the last one, unless
      `blocking`.
    whole_evaluation: `host_evaluation` includes the accelerators' part.
    start: minimum seconds by which a run's first block is longer than later ones.
    decoded_cache: decoded images stay in memory.
    frames: an example's input size relative to the usual one.
    pipelined: the gradient summation overlaps its gathers (section 2 of the pods paper).
    """

    benchmark: str
    network: str
    recipe: str
    batch: int
    cores: int
    examples: int
    eval_examples: int
    eval_batch: int
    partitions: int = 1
    accumulation: int = 1
    span: int = 0
    precision: str = "bf16"
    wire: int = 4
    shard_update: bool = False
    optimizer: str = "sgd"
    buckets: int = 1
    first_evaluation: float = 1.0
    evaluation_every: float = 1.0
    earlier_evaluations: tuple[float, ...] = ()
    epochs: float | None = None
    decode_steps: int = 0
    beams: int = 1
    host_evaluation: float = 0.0
    blocking: bool = False
    whole_evaluation: bool = False
    start: float = 0.0
    decoded_cache: bool = False
    frames: float = 1.0
    pipelined: bool = True

    @property
    def spmd(self) -> bool:
        """Whether XLA's SPMD partitioner splits it, as from round v0.7 on (docs/sources.md, mlperf 1.3)."""
        return self.recipe != "v0.6"

    @property
    def replicas(self) -> int:
        """Number of core groups that see the same examples."""
        return max(1, self.cores // self.partitions)

    @property
    def micro_batch(self) -> float:
        """Examples that a replica sees at once."""
        return self.batch / (self.replicas * self.accumulation)

    @property
    def steps_per_epoch(self) -> float:
        return self.examples / self.batch

    def evaluations(self, epochs: float) -> int:
        """Number of evaluations in a run that reaches its target after `epochs`."""
        later = max(0.0, epochs - self.first_evaluation) / self.evaluation_every
        return 1 + sum(one < epochs for one in self.earlier_evaluations) + math.ceil(later - 1e-9)


# (steps, beams) of a beam search (docs/sources.md, mlperf 2 and 1.5): 97 + 50 steps; as many as the longest sentence
# needs.
SEARCH = {"transformer": (147, 4), "gnmt": (80, 5)}
# Seconds of COCO's evaluation on a host with a pool of workers: the time between the last block and run_stop in
# published v0.7 logs (TPU v4: SSD 3 to 4 s, Mask R-CNN 10 s). Not fitted. `as_logged` has each round's values.
HOST_EVALUATION = {"ssd": 3.5, "maskrcnn": 10.0}


def as_logged(work: Workload) -> Workload:
    """Returns the workload with values from published TPU logs: evaluations outside the blocks, and the start."""
    waits = (work.recipe, work.benchmark) in blocks.WAITING
    return dataclasses.replace(
        work,
        host_evaluation=blocks.evaluation(work.benchmark, work.recipe),
        blocking=waits,
        whole_evaluation=waits,
        start=blocks.start(work.benchmark, work.recipe),
    )


def buckets(parameters: int, wire: int, bucket_bytes: int) -> int:
    """Returns the number of collectives in a gradient sum."""
    return max(1, math.ceil(parameters * wire / bucket_bytes))


def describe(workload: Workload) -> dict[str, Any]:
    """Returns the workload as a dict, for JSON."""
    return dataclasses.asdict(workload)
