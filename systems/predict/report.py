"""Formats a prediction as a text table."""

from __future__ import annotations

from systems.predict.answer import Answer
from systems.predict.law import Estimate

STEP = {
    "compute": "forward and backward pass",
    "imbalance": "idle: partitions of unequal size",
    "halo": "halo exchange",
    "batch_norm": "batch-norm groups",
    "gradient_sum": "gradient sum, not hidden",
    "update": "weight update",
    "input_wait": "waiting for input",
}
RUN = {
    "training": "training steps",
    "evaluation": "evaluation, accelerators",
    "host": "evaluation, host",
    "turnaround": "start, loops in and out",
    "start": "first epoch's reading",
}


def table(answer: Answer) -> str:
    """The terms of a step and of a run with their shares, the total with its interval, and the assumptions."""
    run, step, work = answer.run, answer.run.step, answer.work
    lines = [
        f"{work.benchmark} ({work.network}) on {answer.machine.name}: {answer.machine.accelerators} accelerators, "
        f"batch {work.batch}, {work.micro_batch:g} a replica"
        + (f" of {work.partitions} cores" if work.partitions > 1 else ""),
        f"the step comes from {answer.path}",
        "",
        f"{'a step':<36}{'ms':>10}  share",
    ]
    for term, about in STEP.items():
        lines.append(_row(about, 1e3 * getattr(step, term), getattr(step, term) / step.total))
        if term == "compute":
            lines += [_row(f"  {kind}", 1e3 * s, s / step.total) for kind, s in _largest(step.kinds)]
    lines += [_row("step", 1e3 * step.total, 1.0), ""]
    low, expected, high = answer.epochs
    lines.append(f"{'the run':<36}{'s':>10}  share")
    lines += [_row(about, getattr(run, term), getattr(run, term) / run.total) for term, about in RUN.items()]
    lines += [_row("time to train", run.total, 1.0), ""]
    epochs = f"{expected:.4g} epochs" + (f" ({low:.3g} to {high:.3g})" if high > low else "")
    lines.append(f"{epochs}, {run.steps:.0f} steps, {run.evaluations} evaluations")
    around = f"no interval: {answer.no_interval}"
    if answer.interval:
        around = "nine of ten between {:.3g} and {:.3g}".format(*(s / 60 for s in answer.interval))
    lines.append(f"{run.total / 60:.3g} minutes; {around}")
    if answer.law:
        lines.append(as_published(answer.law))
        lines.append(
            f"by {answer.path} alone: {run.total / answer.factor / 60:.3g} minutes; all terms are {answer.factor:.2f} "
            "times theirs, so as published systems do"
        )
    if answer.made:
        cycles, moved = answer.estimate
        lines.append(
            f"the program's step as estimated: {1e3 * cycles:.2f} ms of cycles, {1e3 * moved:.2f} ms of exchange"
        )
        needed, held = (size / 2**20 for size in answer.made.program.needed)
        lines.append(f"memory: {needed:.0f} of {held:.0f} MiB a core")
    lines += [f"assumed: {note}" for note in answer.notes]
    return "\n".join(lines)


def as_published(found: Estimate) -> str:
    """A line that says what published systems of a kind take, or why that cannot be said."""
    if found.reason:
        return f"as published systems of this kind do: cannot say: {found.reason}"
    return (
        f"as published systems of this kind do: {found.low:.3g} to {found.high:.3g} minutes, {found.minutes:.3g} "
        f"expected ({found.evidence}; round {found.round})"
    )


def _largest(kinds: dict[str, float]) -> list[tuple[str, float]]:
    return sorted(kinds.items(), key=lambda item: -item[1])


def _row(about: str, value: float, share: float) -> str:
    return f"{about:<36}{value:>10.3f}  {share:>5.1%}"
