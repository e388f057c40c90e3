"""Predicts a benchmark's time to train on a system, with what-ifs, and lists every assumption."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from common.errors import UserError, near
from systems.predict import (
    compiled,
    convergence,
    fitting,
    kernel_costs,
    law,
    model,
    program_fit,
    published,
)
from systems.predict import hardware as machine
from systems.predict.answer import Answer, WhatIf
from systems.predict.chips import Given
from systems.predict.compiled import Scaled
from systems.predict.compute import Constants
from systems.predict.hardware import Machine
from systems.predict.law import Estimate
from systems.predict.model import Run
from systems.predict.workload import Workload

_WIRES = {"full": 4, "bf16": 2}


def predict(
    work: Workload,
    description: Mapping[str, Any],
    preset: str,
    what_if: WhatIf | None = None,
    *,
    own: bool = True,
    assume: bool = False,
    hypothetical: bool = False,
    given: Given | None = None,
    notes: list[str] | None = None,
) -> Answer:
    """Predicts a preset's time to train on a machine.

    Args:
      work: the preset's workload.
      description: the machine's description.
      preset: the preset's name, used to find its compiled program.
      what_if: changes to the preset; None for none.
      own: the machine is the preset's own.
      assume: use defaults for required fields that the description lacks.
      hypothetical: allow machines larger than any existing one of their kind.
      given: the user's figures of the accelerator.
      notes: the caller's assumptions; this function appends more.

    Raises:
      UserError: a field is missing, the accelerator is unknown, or values contradict each other.
    """
    notes = [] if notes is None else notes
    what_if = what_if or WhatIf()
    target = machine.machine(description, what_if.accelerators, notes, assume, hypothetical, given or Given())
    if what_if.accelerators is None and work.cores != target.cores:
        # A machine without a preset is used as a whole.
        if not own and _divides(work, what_if, target.cores):
            notes.append(f"replicas: all {target.cores} cores; preset {preset} has {work.cores}")
            what_if = dataclasses.replace(what_if, accelerators=target.accelerators)
        elif work.cores > target.cores:
            raise UserError(
                f"--batch={what_if.batch or work.batch}: preset {preset} has {work.cores} replicas, this machine "
                f"{target.cores} cores; give --batch={_nearest_batch(work, what_if, target.cores)}"
            )
        else:
            notes.append(f"preset {preset} has {work.cores} replicas on {target.cores} cores")
    like = dataclasses.replace(
        WhatIf(), accelerators=what_if.accelerators, batch=what_if.batch, partitions=what_if.partitions
    )
    base = changed(work, target, like, [])
    work = changed(work, target, what_if, notes)
    made = _made(preset, work, target, what_if, own, notes)
    return of_workload(work, target, notes, what_if.epochs, made, base)


def _divides(work: Workload, what_if: WhatIf, cores: int) -> bool:
    """Whether the batch divides evenly among `cores` cores."""
    partitions = what_if.partitions or work.partitions
    return (
        cores % partitions == 0
        and (what_if.batch or work.batch) % (cores // partitions * work.accumulation) == 0
    )


def _nearest_batch(work: Workload, what_if: WhatIf, cores: int) -> int:
    """The batch nearest to the requested one that divides evenly among the replicas of `cores` cores."""
    parts = max(1, cores // (what_if.partitions or work.partitions)) * work.accumulation
    return max(1, round((what_if.batch or work.batch) / parts)) * parts


def _made(
    preset: str, work: Workload, target: Machine, what_if: WhatIf, own: bool, notes: list[str]
) -> Scaled | None:
    """The compiled program of a preset without what-ifs; None if formulas must do."""
    scale = program_fit.scale()
    program = compiled.load(work.benchmark, preset) if scale and target.is_tpu else None
    if not program or what_if.formulas:
        return None
    if not own or what_if.changes_step:
        notes.append(
            f"step: by formulas, since no program is compiled for it; that of {preset} unchanged comes from its "
            "program: compare with --formulas"
        )
        return None
    return Scaled(program, scale)


def of_workload(
    work: Workload,
    target: Machine,
    notes: list[str],
    epochs: float | None = None,
    made: Scaled | None = None,
    base: Workload | None = None,
) -> Answer:
    """Predicts a workload without what-ifs; with `made`, its step comes from the compiled program.

    Accelerators without published rows among those that the constants are fitted to follow the law of published scores
    (law.py): all terms of the formulas are scaled so that `base`, the preset without what-ifs, takes what the law says.
    """
    values = fitting.constants(target.family)
    net = kernel_costs.load(work.network)
    if "by hand" in net.source and not made:
        notes.append(f"costs of {work.network}: {net.source}")
    if target.chip.get("borrowed"):
        notes.append(target.chip["borrowed"])
    if made and made.program.unknown:
        notes.append(f"loops of unknown length count once: {made.program.unknown} of the training program")
    low, expected, high = _epochs(work, epochs, notes)
    run = model.run(work, target, values, expected, made)
    found = _law(base or work, target) if not base or base.network == work.network else None
    if found:
        run, factor, interval, reason = _by_law(found, run, base or work, target, values, made, epochs)
    else:
        factor, reason, errors = 1.0, _outside(work, target), fitting.errors(target.family)
        errors = program_fit.errors() if made else errors
        interval = (
            None if reason or not errors else fitting.interval(run.total, errors, (low, expected, high))
        )
    if reason:
        notes.append(f"no interval: {reason}")
    return Answer(
        work, target, values, run, interval, (low, expected, high), tuple(dict.fromkeys(notes)), made,
        found, factor, reason,
    )  # fmt: skip


def _law(base: Workload, target: Machine) -> Estimate | None:
    """What published systems of the machine's kind take; None where constants of its own family are fitted, or where no
    such run is published.
    """
    own = target.family in fitting.FAMILIES and not target.chip.get("borrowed")
    if own or base.benchmark not in law.OURS or base.recipe == "fixed":
        return None
    if base.network != published.network_of(base.benchmark):
        return None
    chip, used = target.chip, math.ceil(base.cores / target.chip["replicas"])
    if base.cores == target.accelerators:  # A replica on each whole chip, as TPU v4's megacore.
        used = target.accelerators
    rounds = {row.round for row in law.law(base.benchmark).rows if row.chip == chip["name"]}
    when = base.recipe if base.recipe in rounds else ""
    return law.estimate(base.benchmark, chip, used, base.batch, when)


def _by_law(
    found: Estimate,
    run: Run,
    base: Workload,
    target: Machine,
    values: Constants,
    made: Scaled | None,
    epochs: float | None,
) -> tuple[Run, float, tuple[float, float] | None, str]:
    """(the run as the law has it, the factor, its interval, why there is none)."""
    curve = convergence.curve(base.benchmark, base.recipe)
    usual = model.run(base, target, values, curve.epochs(base.batch), made).total
    factor = 60 * found.minutes / usual
    run = model.scaled(run, factor)
    reason = found.reason
    if not reason and target.hypothetical:
        reason = f"nobody built a machine of {target.accelerators} accelerators"
    if reason:
        return run, factor, None, reason
    parts = (found.low / found.minutes, found.high / found.minutes)
    return run, factor, (run.total * parts[0], run.total * parts[1]), ""


def _outside(work: Workload, target: Machine) -> str:
    """Why no published run resembles the prediction; "" if the leave-one-out errors apply."""
    benchmarks, networks = zip(
        *((r.benchmark, published.network_of(r.benchmark)) for r in published.tested())
    )
    if work.benchmark not in benchmarks:
        return f"no scores of {work.benchmark} are published"
    if work.recipe == "fixed":
        return f"{work.benchmark} with fixed epochs is outside the published runs, which train to a target"
    if work.network not in networks:
        return f"no scores of {work.network} are published"
    if target.chip.get("borrowed") or target.family not in fitting.FAMILIES:
        return f"no published score tests {work.benchmark} on {target.chip['name']}"
    if work.cores != target.cores:
        return f"a run on {work.cores} of {target.cores} cores is outside the published runs"
    return f"nobody built a machine of {target.accelerators} accelerators" if target.hypothetical else ""


def _epochs(work: Workload, given: float | None, notes: list[str]) -> tuple[float, float, float]:
    if given is not None:
        return given, given, given
    if work.epochs is not None:
        notes.append(f"epochs: {work.epochs:g}, which the recipe fixes")
        if work.benchmark == "tsm_kinetics":
            top = convergence.kinetics_accuracy(work.batch)
            notes.append(f"they reach {top:.2%} top-1 at batch {work.batch} (Training Kinetics, Table 3)")
        return work.epochs, work.epochs, work.epochs
    curve = convergence.curve(work.benchmark, work.recipe)
    if curve is None:
        raise UserError(f"{work.benchmark}: no epochs were published; give --epochs=N")
    if not curve.batches[0] / 2 <= work.batch <= curve.batches[1] * 2:
        seen = f"{curve.batches[0]:g} to {curve.batches[1]:g}"
        notes.append(
            f"epochs: batch {work.batch} is far from the published ones ({seen}): nobody has shown it to converge"
        )
    low, high = curve.interval(work.batch)
    return low, curve.epochs(work.batch), high


def changed(work: Workload, target: Machine, what_if: WhatIf, notes: list[str]) -> Workload:
    """Applies the what-ifs to a workload and checks the result.

    Raises:
      UserError: the batch does not divide evenly, or partitions or spans do not fit.
    """
    cores = work.cores if what_if.accelerators is None else target.cores
    partitions = work.partitions if what_if.partitions is None else what_if.partitions
    if cores % partitions:
        raise UserError(f"--partitions={partitions}: does not divide {cores} cores; use a divisor")
    batch = work.batch if what_if.batch is None else what_if.batch
    parts = cores // partitions * work.accumulation
    if batch % parts:
        raise UserError(
            f"--batch={batch}: does not divide into {cores // partitions} replicas"
            + (f" x {work.accumulation} micro-batches" if work.accumulation > 1 else "")
            + f"; try --batch={_nearest_batch(work, what_if, cores)}"
        )
    shard = work.shard_update if what_if.shard_update is None else what_if.shard_update
    if target.is_tpu and what_if.shard_update is None and not shard:
        notes.append(
            "weight update: whole on every core, as the preset has it; the fit takes published TPU runs to shard it "
            "(--weight-update-sharding)"
        )
    wire = work.wire if what_if.wire is None else _WIRES[what_if.wire]
    span = _span(
        what_if.span if what_if.span is not None else work.span, batch // parts, cores, what_if, notes
    )
    replicas = cores // partitions
    eval_batch = -(-work.eval_batch // replicas) * replicas
    if eval_batch != work.eval_batch:
        notes.append(f"evaluation batch: {eval_batch}, the next multiple of {replicas} replicas")
    name = what_if.model or work.network
    if name not in kernel_costs.known():
        raise UserError(
            f"--model={name}: unknown{near(name, kernel_costs.known())}; known: {', '.join(kernel_costs.known())}"
        )
    new = dataclasses.replace(
        work, cores=cores, partitions=partitions, batch=batch, shard_update=shard, wire=wire, span=span,
        eval_batch=eval_batch, network=name,
    )  # fmt: skip
    return model.with_buckets(new)


def _span(span: int, mine: int, cores: int, what_if: WhatIf, notes: list[str]) -> int:
    if not span or span % mine == 0 and span // mine <= cores:
        return span
    if mine % span == 0:
        return span
    if what_if.span is not None:
        raise UserError(
            f"--span={span}: neither divides nor is a multiple of the {mine} examples of a replica"
        )
    notes.append(f"batch norm's span: {mine}, a replica's own examples, since {span} does not fit")
    return mine
