"""`timetotrain why A B`: why one run takes longer than another, term by term. The terms add up to the difference.

A run's seconds are start + evaluations * seconds of one + steps * (seconds of one, by term) + gaps. The difference of a
product is split evenly: a change of one factor counts at the mean of the other, so that the terms add up exactly.
A log's step is one term, unless the run was recorded with --profile_steps: the traces beside the log, of one or of
several processes, say what parts of the recorded steps went to compute, exchange and input.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common.errors import UserError
from compliance.log.logs import number
from compliance.report.charts import Interval, length, union, without
from compliance.submission.runs import Run, read_run

_UNITS = ("steps", "epochs", "blocks")


@dataclasses.dataclass(frozen=True)
class Shape:
    """A run's seconds by what they went to.

    Attributes:
      name, head: the log, and its benchmark, system, batch, precision and round.
      benchmark: its name in the log.
      counts: the training's length in every unit that the log tells: "steps", "epochs", "blocks".
      start: seconds before the first step.
      evaluations, evaluation: their number, and seconds of all that training waits for.
      steps, unit: their number, and what they are: "steps", or "epochs" or "blocks" where a log does not tell steps.
      step: seconds of one by term; {"step": seconds} where the terms are unknown.
      gaps: seconds between blocks and evaluations, and after the last.
      untold: why a log's step has no terms; "" if it has.
    """

    name: str
    start: float
    evaluations: int
    evaluation: float
    steps: float
    unit: str
    step: Mapping[str, float]
    gaps: float
    untold: str = ""
    head: str = ""
    benchmark: str = ""
    counts: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @property
    def total(self) -> float:
        return self.start + self.evaluation + self.steps * sum(self.step.values()) + self.gaps


@dataclasses.dataclass(frozen=True)
class Term:
    """A part of the difference in seconds, and both sides in words."""

    name: str
    seconds: float
    first: str
    second: str


def explain(first: Shape, second: Shape) -> list[Term]:
    """The terms of `second` less `first`; they add up to the difference of the totals.

    Runs whose logs count in different units are compared in one that both tell, or by their training as a whole.
    """
    a, b = first, second
    if a.unit != b.unit:
        unit = next((unit for unit in _UNITS if unit in a.counts and unit in b.counts), "trainings")
        a, b = _in(a, unit), _in(b, unit)
    if set(a.step) != set(b.step):
        a, b = _single(a), _single(b)
    terms = [Term("start", b.start - a.start, f"{a.start:.1f} s", f"{b.start:.1f} s")]
    sums = sum(a.step.values()), sum(b.step.values())
    terms.append(
        Term(f"number of {a.unit}", (b.steps - a.steps) * sum(sums) / 2, f"{a.steps:,.4g}", f"{b.steps:,.4g}")
    )
    middle = (a.steps + b.steps) / 2
    for name in a.step:
        one, other = a.step[name], b.step[name]
        label = f"seconds a {a.unit.removesuffix('s')}" if name == "step" else name
        terms.append(Term(label, (other - one) * middle, _short(one), _short(other)))
    each = [shape.evaluation / shape.evaluations if shape.evaluations else 0.0 for shape in (a, b)]
    many = (b.evaluations - a.evaluations) * sum(each) / 2
    terms.append(Term("number of evaluations", many, f"{a.evaluations}", f"{b.evaluations}"))
    longer = (each[1] - each[0]) * (a.evaluations + b.evaluations) / 2
    terms.append(Term("seconds an evaluation", longer, f"{each[0]:.3g} s", f"{each[1]:.3g} s"))
    return [*terms, Term("gaps", b.gaps - a.gaps, f"{a.gaps:.1f} s", f"{b.gaps:.1f} s")]


def _in(shape: Shape, unit: str) -> Shape:
    """The shape counted in another unit; "trainings": all of it as one."""
    many = shape.counts.get(unit, 1.0)
    step = {name: seconds * shape.steps / many for name, seconds in shape.step.items()}
    return dataclasses.replace(shape, steps=many, unit=unit, step=step)


def _short(seconds: float) -> str:
    """A time in words, in the unit that keeps it short."""
    return f"{1e3 * seconds:.4g} ms" if seconds < 10 else f"{seconds:,.1f} s"


def _single(shape: Shape) -> Shape:
    return dataclasses.replace(shape, step={"step": sum(shape.step.values())})


def of_log(path: Path) -> Shape:
    """The shape of a run's log.

    A log without blocks trains whenever it does not evaluate. Moments in which a block trains count as training, even
    if an evaluation goes on beside it; where every evaluation lies in a block, the log's blocks enclose them and they
    count as evaluation.

    Raises UserError: the log cannot be read, or lacks run_start or run_stop.
    """
    run = read_run(path)
    if run.minutes is None:
        raise UserError(f"{path}: run_start or run_stop is missing, so it has no time to explain")
    begin, end = run.run_start / 1e3, run.run_stop / 1e3
    training = _clipped([(span.start, span.stop) for span in run.blocks], begin, end)
    evaluating = _clipped(_evaluations(run), begin, end)
    training = training or without([(begin, end)], evaluating)
    if not training:
        raise UserError(f"{path}: run_stop is not after run_start, so it has no time to explain")
    alone = without(evaluating, training)
    if length(alone) < 0.01 * length(evaluating):
        alone, training = evaluating, without(training, evaluating)
    start = (min(training)[0] if training else begin) - begin
    early = length([(lo, min(hi, begin + start)) for lo, hi in alone if lo < begin + start])
    trained, evaluated = length(training), length(alone)
    counts = _counts(run, len(training))
    unit = next(unit for unit in _UNITS if unit in counts)
    steps = counts[unit]
    gaps = (end - begin) - (start - early) - trained - evaluated
    parts, untold = _recorded(path)
    step = {name: part * trained / steps for name, part in parts.items()}
    return Shape(
        path.name, start - early, run.evaluated, evaluated, steps, unit, step, gaps, untold,
        _head(run), run.benchmark, counts,
    )  # fmt: skip


def _head(run: Run) -> str:
    """A log's benchmark, system, batch, precision and round, as far as it tells them."""
    told = run.header | run.settings
    batch, precision = told.get("global_batch_size"), told.get("precision") or told.get("opt_precision")
    words = [run.benchmark, told.get("submission_platform"), batch and f"batch {batch}", precision]
    return ", ".join(str(word) for word in [*words, f"round {run.ruleset}"] if word)


def _recorded(path: Path) -> tuple[dict[str, float], str]:
    """The parts of a step by the trace beside a log, profile_<i> of result_<i>.txt; else {"step": 1} and why not.

    Raises UserError: the trace is damaged.
    """
    number = re.fullmatch(r"result_(\d+)\.txt", path.name)
    folder = path.parent / f"profile_{number[1]}" if number else None
    if folder is None or not folder.is_dir():
        return {"step": 1.0}, f"no trace lies beside {path.name} (--profile_steps of a run records one)"
    # The newest file of each process, by its name.
    files = {
        one.name: one for one in sorted(folder.rglob("*.xplane.pb"), key=lambda one: one.stat().st_mtime)
    }
    from common.train import trace

    try:
        told = [found for one in files.values() if (found := trace.shares(one))]
    except ImportError as error:
        return {"step": 1.0}, f"{folder}: reading a trace needs TensorFlow ({error})"
    if not told:
        return {"step": 1.0}, f"{folder}: has no recorded step"
    return {name: sum(one[name] for one in told) / len(told) for name in told[0]}, ""


def _evaluations(run: Run) -> list[Interval]:
    """The evaluations' intervals; one without an end lasts until the next eval_accuracy."""
    known = [one.time_ms for one in run.evaluations]
    spans = []
    for span in run.evals:
        if span.stop is not None:
            spans.append((span.start, span.stop))
        elif span.start is not None:
            spans.append((span.start, min((t for t in known if t >= span.start), default=None)))
    return spans


def _clipped(spans: Sequence[tuple[float | None, float | None]], begin: float, end: float) -> list[Interval]:
    """The union of intervals in milliseconds, as sorted ones in seconds within [begin, end]; open ones are left out."""
    closed = [(lo, hi) for lo, hi in spans if lo is not None and hi is not None]
    return union((max(lo / 1e3, begin), min(hi / 1e3, end)) for lo, hi in closed)


def _counts(run: Run, blocks: int) -> dict[str, float]:
    """The training's length to the target in steps and epochs, as far as the log tells them, else its blocks."""
    batch, samples = (number(run.header.get(key)) for key in ("global_batch_size", "train_samples"))
    done, counts = run.epochs, {}
    if done and run.unit == "steps":
        counts["steps"] = done
    elif done and run.unit == "samples" and batch:
        counts["steps"] = done / batch
    elif done and run.unit == "epochs":
        counts["epochs"] = done
        if batch and samples and samples >= batch:
            counts["steps"] = done * samples / batch
    elif done:
        counts["epochs"] = done
    if "steps" in counts and "epochs" not in counts and batch and samples and samples >= batch:
        counts["epochs"] = counts["steps"] * batch / samples
    return counts or {"blocks": float(max(1, blocks))}


def table(first: Shape, second: Shape) -> list[str]:
    """The lines of an explanation."""
    terms = explain(first, second)
    difference = second.total - first.total
    lines = [
        *(
            f"{letter}: {', '.join(filter(None, (shape.head, shape.name)))}: {shape.total / 60:.4g} minutes"
            for letter, shape in (("A", first), ("B", second))
        ),
        "",
        f"{'term':<24} {'A':>13} {'B':>13} {'seconds':>12}  of the difference",
    ]
    for term in terms:
        share = f"{term.seconds / difference:>8.0%}" if difference else ""
        lines.append(f"{term.name:<24} {term.first:>13} {term.second:>13} {term.seconds:>+12.1f}  {share}")
    lines.append(f"{'B less A':<52} {difference:>+12.1f}")
    untold = [shape.untold for shape in (first, second) if shape.untold]
    return [*lines, f"A step is one term: {untold[0]}."] if untold else lines


def content(first: Shape, second: Shape) -> dict[str, Any]:
    """The explanation for JSON, in seconds."""
    return {
        "a": dataclasses.asdict(first) | {"total": first.total},
        "b": dataclasses.asdict(second) | {"total": second.total},
        "terms": {term.name: term.seconds for term in explain(first, second)},
        "difference": second.total - first.total,
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Says where the difference of two runs' minutes comes from; the terms add up to it."
    parser.add_argument("first", metavar="LOG_A", type=Path, help="a run's log")
    parser.add_argument("second", metavar="LOG_B", type=Path, help="another run's log")
    parser.add_argument("--any", action="store_true", help="compare logs of different benchmarks, too")
    parser.add_argument("--json", action="store_true", help="print all of it as JSON, in seconds")


def run(options: argparse.Namespace) -> int:
    """Prints the explanation and returns 0.

    Raises UserError: a log cannot be read or has no time to train, or they are of different benchmarks.
    """
    first, second = of_log(options.first), of_log(options.second)
    if first.benchmark != second.benchmark and not options.any:
        raise UserError(
            f"{options.first}: a log of {first.benchmark}, {options.second} of {second.benchmark}; "
            "give --any to compare them"
        )
    print(json.dumps(content(first, second), indent=1) if options.json else "\n".join(table(first, second)))
    return 0
