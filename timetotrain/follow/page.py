"""Renders a run's page from the records of its history. TensorFlow-free."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jinja2

from common.config.quality import Measure
from compliance.report.charts import Axis, axis
from timetotrain.run.history import Record, best
from timetotrain.run.progress import duration, number

# The smoothing weight of past points halves over this fraction of the curve's points.
SMOOTHING = 0.02
MOST_POINTS = 1500
Points = list[tuple[float, float]]


@dataclasses.dataclass(frozen=True)
class Line:
    """A curve: its legend, its color's CSS class, its points in percent of the plot."""

    name: str
    kind: str
    path: str
    dots: tuple[tuple[float, float, str], ...] = ()


@dataclasses.dataclass(frozen=True)
class Chart:
    """A plot over steps or seconds; `marks` are the points where runs resumed, in percent."""

    title: str
    across: str
    x: Axis
    y: Axis
    lines: tuple[Line, ...]
    marks: tuple[float, ...]


def render(records: Sequence[Record]) -> str:
    """Returns the page; that of an unfinished run reloads itself."""
    template = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(
        Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    )
    head = next((r for r in reversed(records) if r["kind"] == "run"), None)
    if head is None:
        return template.render(head=None, ended=False, facts=[], charts={})
    return template.render(
        head=head,
        ended=ended(records),
        facts=_facts(records, head, measure(head)),
        charts={across: charts(records, head, across) for across in ("steps", "time")},
        by_class=_by_class(records),
        confused=_newest(records, "confused"),
    )


def _by_class(records: Sequence[Record]) -> list[tuple[str, float]]:
    """Returns the newest (class, quality in percent), worst first."""
    newest = dict(_newest(records, "by_class")).items()
    return sorted(((name, 100 * value) for name, value in newest), key=lambda pair: pair[1])


def _newest(records: Sequence[Record], field: str) -> Any:
    """Returns a field of the newest evaluation, () if it has none."""
    return next((r.get(field, ()) for r in reversed(records) if r["kind"] == "evaluation"), ())


def measure(head: Record) -> Measure:
    """Returns the quality's name and unit from the history."""
    return Measure(head["quality"], head["unit"], head["lower_is_better"], head["names"])


def ended(records: Sequence[Record]) -> bool:
    """Whether the newest run of the history has ended."""
    return bool(records) and records[-1]["kind"] == "end"


def _facts(records: Sequence[Record], head: Record, how: Measure) -> list[tuple[str, str]]:
    last, evaluations = records[-1], [r for r in records if r["kind"] == "evaluation"]
    steps, total = max(r["step"] for r in records), head["train_steps"]
    facts = [("state", last["status"] if ended(records) else "training")]
    facts.append(("step", f"{steps:,} of {total:,}"))
    facts.append(("time", duration(last["seconds"])))
    done = steps - head["step"]
    if not ended(records) and done:
        remaining = (last["seconds"] - head["seconds"]) / done * (total - steps)
        facts.append(("left", f"about {duration(remaining)}"))
    losses = [r for r in records if "loss" in r]
    if losses:
        facts.append(("loss", number(losses[-1]["loss"])))
    rates = [r["examples_per_second"] for r in records if "examples_per_second" in r]
    if rates:
        recent = sorted(rates[-20:])
        facts.append(("examples/s", number(recent[len(recent) // 2])))
    if evaluations:
        facts.append(("quality", how.text(evaluations[-1]["value"])))
        top = best(how, evaluations, [r["step"] for r in evaluations]) or evaluations[-1]
        facts.append(("best", f"{how.text(top['value'])}, epoch {top['epoch']}"))
    facts.append(("target", "none" if head["target"] is None else how.target(head["target"])))
    return [(name, text.replace(" %", "\u00a0%")) for name, text in facts]


def charts(records: Sequence[Record], head: Record, across: str) -> list[Chart]:
    """Returns the plots over "steps" or "time"."""
    scale, unit = _scale(records) if across == "time" else (1.0, "steps")

    def at(record: Record) -> float:
        return record["seconds"] / scale if across == "time" else record["step"]

    runs = [r for r in records if r["kind"] == "run"]
    x = axis([0.0, *(at(r) for r in records if r["kind"] != "run")])
    marks = tuple(x(at(r)) for r in runs[1:])
    parts = [_quality(records, head, at, x), _loss(records, at, x)]
    for field, title in (("learning_rate", "learning rate"), ("examples_per_second", "examples per second")):
        points = [(at(r), r[field]) for r in records if field in r]
        parts.append((title, [("", "run", points, False)], [0.0, *(v for _, v in points)]))
    return [
        _chart(title, unit, x, curves, values, marks)
        for title, curves, values in parts
        if any(c[2] for c in curves)
    ]


def _scale(records: Sequence[Record]) -> tuple[float, str]:
    longest = max((r["seconds"] for r in records), default=0.0)
    return next(
        ((s, u) for s, u in ((3600.0, "hours"), (60.0, "minutes")) if longest > 3 * s), (1.0, "seconds")
    )


Curve = tuple[str, str, Points, bool]  # Legend, class, points, dots.


def _quality(
    records: Sequence[Record], head: Record, at: Callable[[Record], float], x: Axis
) -> tuple[str, list[Curve], list[float]]:
    how = measure(head)
    factor = 100.0 if how.unit == "%" else 1.0
    series: dict[str, Points] = {}
    for record in (r for r in records if r["kind"] == "evaluation"):
        for name, value in how.by_name(record["value"]).items():
            if math.isfinite(value):
                series.setdefault(name, []).append((at(record), factor * value))
    curves: list[Curve] = [(n, kind, p, True) for (n, p), kind in zip(series.items(), ("run", "eval"))]
    values = [v for p in series.values() for _, v in p]
    if head["target"] is not None and values:
        for name, target in how.by_name(head["target"]).items():
            legend = f"target {how.number(target)}" if len(series) < 2 else f"target of {name}"
            ends = [(x.low, factor * target), (x.high, factor * target)]
            curves.append((legend, "target", ends, False))
            values.append(factor * target)
    return how.name + (" in %" if how.unit == "%" else ""), curves, values


def _loss(
    records: Sequence[Record], at: Callable[[Record], float], x: Axis
) -> tuple[str, list[Curve], list[float]]:
    trained = max((r["step"] for r in records if r["kind"] == "train"), default=-1)
    shown_losses = [
        r
        for r in records
        if "loss" in r and math.isfinite(r["loss"]) and (r["kind"] == "train" or r["step"] > trained)
    ]
    points = [(at(r), r["loss"]) for r in shown_losses]
    smooth = smoothed(points)
    # The first steps' losses can be far off, so the plot's range follows the rest.
    values = sorted(v for _, v in points)
    usual = [v for v in values if v <= 1.5 * values[int(0.98 * (len(values) - 1))] + 1e-9] if values else []
    curves: list[Curve] = [("each point", "faint", points, False), ("smoothed", "run", smooth, False)]
    evaluated = [r for r in records if r["kind"] == "evaluation"]
    details = [(at(r), r.get("details", {}).get("loss", math.nan)) for r in evaluated]
    if evaluations := [(x, loss) for x, loss in details if math.isfinite(loss)]:
        curves.append(("evaluation", "eval", evaluations, True))
    return "loss" if evaluations else "training loss", curves, usual + [loss for _, loss in evaluations]


def smoothed(points: Points) -> Points:
    """Returns the exponential moving average of the values, with the bias correction of Adam's moments."""
    weight = 0.5 ** (1 / max(1.0, SMOOTHING * len(points)))
    mean, result = 0.0, []
    for i, (x, y) in enumerate(points, 1):
        mean = weight * mean + (1 - weight) * y
        result.append((x, mean / (1 - weight**i)))
    return result


def _chart(
    title: str, unit: str, x: Axis, curves: list[Curve], values: list[float], marks: tuple[float, ...]
) -> Chart:
    y = axis(values, widen=True)
    lines = []
    for name, kind, points, dotted in curves:
        thin = points[:: max(1, -(-len(points) // MOST_POINTS))]
        if points and thin[-1] is not points[-1]:
            thin.append(points[-1])
        placed = [(x(a), round(100 - y(b), 3)) for a, b in thin]
        path = "M" + "L".join(f"{a} {b}" for a, b in placed)
        dots = tuple((a, b, number(v)) for (a, b), (_, v) in zip(placed, thin)) if dotted else ()
        lines.append(Line(name, kind, path, dots))
    return Chart(title, unit, x, y, tuple(lines), marks)
