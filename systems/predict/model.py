"""Predicts time to train in closed form: the terms of a step, the terms of a run, and the total."""

from __future__ import annotations

import dataclasses

from systems.predict import collectives, compute, evaluation, inputs, kernel_costs, measured, workload
from systems.predict.compiled import Scaled
from systems.predict.compute import Constants
from systems.predict.hardware import Machine
from systems.predict.workload import Workload

# Fraction of a step's arithmetic that overlaps with the gradient sum. A GPU sends buckets during the backward pass,
# two thirds of the arithmetic; these rounds' TPU programs sum after it (pods paper, section 2). Not fitted.
OVERLAP = {"v100": 0.5, "h200": 0.5, "tpu-v3": 0.0}


@dataclasses.dataclass(frozen=True)
class Step:
    """Seconds of a training step, by term; the terms add up to `total`.

    Attributes:
      kinds: seconds of `compute` by kernel kind.
      gradient_sum_whole: the gradient sum including the part that the backward pass hides.
    """

    compute: float
    batch_norm: float
    gradient_sum: float
    update: float
    halo: float
    imbalance: float
    input_wait: float
    kinds: dict[str, float]
    gradient_sum_whole: float

    TERMS = ("compute", "imbalance", "halo", "batch_norm", "gradient_sum", "update", "input_wait")

    @property
    def total(self) -> float:
        return sum(getattr(self, term) for term in self.TERMS)


@dataclasses.dataclass(frozen=True)
class Run:
    """Seconds of a run, by term; the terms add up to `total`.

    Attributes:
      epochs, steps, evaluations: counts.
      step: the terms of one step.
      training: steps * step.
      evaluation: evaluations on the accelerators.
      host: the host's part of the evaluations that the run waits for.
      turnaround: time to leave and re-enter the training loop, for the evaluations and the start.
      start: extra seconds of the first block: the longer of reading and decoding, and what published logs show.
      program: the compiled program that the step comes from; "" if it comes from formulas.
    """

    epochs: float
    steps: float
    evaluations: int
    step: Step
    training: float
    evaluation: float
    host: float
    turnaround: float
    start: float
    program: str = ""

    TERMS = ("training", "evaluation", "host", "turnaround", "start")

    @property
    def total(self) -> float:
        return sum(getattr(self, term) for term in self.TERMS)


def step(work: Workload, machine: Machine, constants: Constants, made: Scaled | None = None) -> Step:
    """Predicts a training step, whose time the slowest replica decides; with `made`, from the compiled program."""
    if made:
        return _compiled_step(work, machine, made)
    net = kernel_costs.load(work.network)
    constants = _for(net, machine, constants)
    batch = work.micro_batch
    if machine.family == measured.FAMILY and (program := measured.totals(work.network)):
        return _measured_step(work, machine, constants, net, program)
    shares = compute.partition_shares(net.train, work.partitions, work.spmd)
    times = compute.seconds(net.train, batch, machine, constants, work.precision, shares) * work.accumulation
    arithmetic = float(times.sum())
    even = arithmetic
    if work.partitions > 1:
        equal = compute.seconds(
            net.train, batch, machine, constants, work.precision, shares * 0 + 1 / work.partitions
        )
        even = min(arithmetic, float(equal.sum()) * work.accumulation)
    group = max(1, round(work.span / batch)) if work.span else 1
    # Sums of a layer's two moments in the forward pass, and of two gradients in the backward pass.
    norms = 2 * net.norm_layers * collectives.small_sum(machine, group * work.partitions) * work.accumulation
    shards = work.cores if work.shard_update else 1
    back = 4 if work.shard_update else work.wire
    # A Transformer's partitions each hold part of every weight; a convolution's partitions hold all of it
    # (docs/sources.md, mlperf 1.4 and 3).
    mine = net.parameters // (work.partitions if work.benchmark == "transformer" else 1)
    whole = collectives.gradient_sum(
        machine, mine, work.cores, work.wire, back, work.buckets, pipelined=work.pipelined
    )
    hidden = OVERLAP[machine.family] * arithmetic / work.accumulation
    exposed = max(0.0, whole - hidden)
    changed = compute.update_seconds(machine, constants, work.optimizer, net.parameters, net.tensors, shards)
    halo = collectives.halo_seconds(machine, net.train, batch, work.partitions)
    busy = arithmetic + norms + exposed + changed + halo
    feed = _input(work, machine, busy)
    wait = max(0.0, feed.step - busy)
    kinds = compute.by_kind(net.train, times)
    return Step(even, norms, exposed, changed, halo, arithmetic - even, wait, kinds, whole)


def _measured_step(
    work: Workload,
    machine: Machine,
    constants: Constants,
    net: kernel_costs.Network,
    program: measured.Totals,
) -> Step:
    """A GPU's step by its compiled program, which includes the update."""
    batch = work.micro_batch
    products, traffic = measured.step_seconds(
        program, machine, constants, net.train.flops(batch), batch, work.precision
    )
    kinds = {"products": products * work.accumulation, "memory": traffic * work.accumulation}
    arithmetic = sum(kinds.values())
    group = max(1, round(work.span / batch)) if work.span else 1
    norms = 2 * net.norm_layers * collectives.small_sum(machine, group) * work.accumulation
    whole = collectives.gradient_sum(machine, net.parameters, work.cores, work.wire, work.wire, work.buckets)
    exposed = max(0.0, whole - OVERLAP[machine.family] * arithmetic / work.accumulation)
    busy = arithmetic + norms + exposed
    wait = max(0.0, _input(work, machine, busy).step - busy)
    return Step(arithmetic, norms, exposed, 0.0, 0.0, 0.0, wait, kinds, whole)


def _compiled_step(work: Workload, machine: Machine, made: Scaled) -> Step:
    """The program's cycles include the update, copies, and a partition's idle time."""
    factor = made.scale.of(made.program.benchmark, made.program.kind)
    kinds = {kind: factor * seconds for kind, seconds in made.program.kinds().items()}
    arithmetic = sum(kinds.values())
    moved = made.program.exchange(machine, made.scale.link)
    busy = arithmetic + sum(moved.values())
    wait = max(0.0, _input(work, machine, busy).step - busy)
    return Step(
        compute=arithmetic,
        batch_norm=moved["batch_norm"],
        gradient_sum=moved["gradient_sum"],
        update=0.0,
        halo=moved["halo"],
        imbalance=0.0,
        input_wait=wait,
        kinds=kinds,
        gradient_sum_whole=moved["gradient_sum"],
    )


def _for(net: kernel_costs.Network, machine: Machine, constants: Constants) -> Constants:
    """Adapts the constants to a network: GPU libraries have slower kernels for 3-D convolutions."""
    if machine.is_tpu or not net.three_dimensional:
        return constants
    return dataclasses.replace(constants, matrix=constants.matrix / compute.SLOWER_IN_3D)


def _input(work: Workload, machine: Machine, busy: float) -> inputs.Input:
    return inputs.seconds(
        machine, work.benchmark, work.batch, work.steps_per_epoch, work.frames, work.decoded_cache, busy
    )


def run(
    work: Workload, machine: Machine, constants: Constants, epochs: float, made: Scaled | None = None
) -> Run:
    """Predicts a run that reaches its target after `epochs`; with `made`, its steps come from the compiled program."""
    work = workload.as_logged(work) if made else work
    one = step(work, machine, constants, made)
    steps = epochs * work.steps_per_epoch
    evaluations = work.evaluations(epochs)
    net = kernel_costs.load(work.network)
    device = evaluation.device_seconds(work, net, machine, constants, made)
    turnaround = made.scale.turnaround if made else constants.turnaround
    return Run(
        epochs=epochs,
        steps=steps,
        evaluations=evaluations,
        step=one,
        training=steps * one.total,
        evaluation=evaluations * device,
        host=evaluation.host_seconds(work, evaluations),
        turnaround=(evaluations + 1) * turnaround,
        start=max(work.start, _input(work, machine, one.total).first_epoch),
        program=made.program.name if made else "",
    )


def scaled(run: Run, factor: float) -> Run:
    """The run with every second, of the step and of the run, times `factor`."""
    one = run.step
    seconds = {term: factor * getattr(one, term) for term in (*Step.TERMS, "gradient_sum_whole")}
    kinds = {kind: factor * value for kind, value in one.kinds.items()}
    terms = {term: factor * getattr(run, term) for term in Run.TERMS}
    return dataclasses.replace(run, step=dataclasses.replace(one, kinds=kinds, **seconds), **terms)


def with_buckets(work: Workload, bucket_bytes: int = 32 * 2**20) -> Workload:
    """Returns the workload with its number of collectives filled in."""
    parameters = kernel_costs.load(work.network).parameters
    return dataclasses.replace(work, buckets=workload.buckets(parameters, work.wire, bucket_bytes))
