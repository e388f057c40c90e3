"""Draws pictures of predictions; the only module that imports matplotlib, and only when a picture is requested."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from systems.predict import convergence, fitting, law, law_fit, model, published
from systems.predict.answer import Answer
from systems.predict.hardware import Machine
from systems.predict.money import Size
from systems.predict.workload import Workload

BENCHMARKS = ("resnet", "ssd", "maskrcnn", "transformer", "gnmt")
# Maximum examples per core while the batch grows with the machine: those of the smallest published TPU v3 systems.
_MOST = {"resnet": 128, "ssd": 32, "maskrcnn": 4, "transformer": 16, "gnmt": 128, "tsm_kinetics": 8}
_COLOURS = ("#4c72b0", "#dd8452", "#55a868", "#c44e52", "#8172b3", "#937860")


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def sweep(answer: Answer) -> list[tuple[int, dict[str, float]]]:
    """(accelerators, seconds by part) for machines of the answer's kind, by powers of two, up to its size or 4,096.

    The batch grows with the machine up to the answer's batch; the epochs follow the curve.
    """
    result = []
    size = answer.machine.per_node
    while size <= max(answer.machine.accelerators, 1):
        machine = dataclasses.replace(answer.machine, accelerators=size)
        work = _resized(answer.work, machine)
        if work:
            curve = convergence.curve(work.benchmark, work.recipe) if work.epochs is None else None
            run = model.run(
                work, machine, answer.constants, curve.epochs(work.batch) if curve else work.epochs
            )
            result.append((size, _parts(run)))
        size *= 2
    return result


def _resized(work: Workload, machine: Machine) -> Workload | None:
    partitions = work.partitions if machine.cores >= work.cores else 1
    replicas = machine.cores // partitions
    batch = min(work.batch, replicas * _MOST.get(work.benchmark, 32))
    batch = batch // replicas * replicas
    if not batch:
        return None
    return dataclasses.replace(
        work, cores=machine.cores, partitions=partitions, batch=batch, accumulation=1,
        span=max(work.span, batch // replicas) if work.span else 0,
        eval_batch=-(-min(work.eval_batch, work.eval_examples) // replicas) * replicas,
    )  # fmt: skip


def _parts(run: model.Run) -> dict[str, float]:
    step = run.step
    arithmetic = run.steps * (step.compute + step.imbalance)
    between = run.steps * (step.gradient_sum + step.batch_norm + step.halo)
    return {
        "forward and backward": arithmetic,
        "between accelerators": between,
        "weight update": run.steps * step.update,
        "input": run.steps * step.input_wait + run.start,
        "evaluation": run.evaluation + run.host,
        "start, loops": run.turnaround,
    }


def time_to_train(path: Path, answer: Answer) -> None:
    """Plots time to train and its parts against the number of accelerators, with the published points."""
    pyplot = _pyplot()
    points = sweep(answer)
    figure, (times, shares) = pyplot.subplots(2, 1, figsize=(7, 7), sharex=True, height_ratios=(3, 2))
    sizes = [size for size, _ in points]
    totals = [sum(parts.values()) for _, parts in points]
    times.plot(sizes, [total / 60 for total in totals], "-", color="k", label="predicted")
    seen = _published(answer)
    if seen:
        times.plot(*zip(*seen), "^", color=_COLOURS[3], markersize=6, label="published")
    times.set(xscale="log", yscale="log", ylabel="minutes", title=f"{answer.work.benchmark}: time to train")
    times.legend(fontsize=8)
    below = [0.0] * len(points)
    for colour, part in zip(_COLOURS, points[0][1]):
        tops = [b + parts[part] / total for b, total, (_, parts) in zip(below, totals, points)]
        shares.fill_between(sizes, below, tops, color=colour, alpha=0.8, label=part, linewidth=0)
        below = tops
    shares.set(
        xscale="log",
        xlabel=f"accelerators like those of {answer.machine.name}",
        ylabel="share of it",
        ylim=(0, 1),
    )
    shares.legend(fontsize=8, loc="lower left")
    figure.savefig(path, dpi=110, bbox_inches="tight")
    pyplot.close(figure)


def _published(answer: Answer) -> list[tuple[int, float]]:
    """(accelerators, minutes) of the published scores for the answer's benchmark, family and round."""
    if answer.work.benchmark == "tsm_kinetics":
        return [(6 * nodes, seconds / 60) for nodes, _, seconds in published.KINETICS]
    wanted = answer.machine.family, answer.work.benchmark, answer.work.recipe
    rows = [r for r in published.tested() if (r.family, r.benchmark, r.round) == wanted]
    return [(r.accelerators, r.seconds / 60) for r in rows]


def figures(path: Path) -> None:
    """Draws figures 7 to 9 of the pods paper with the model's points: batch, epochs, seconds of TPU v3 in v0.6."""
    pyplot = _pyplot()
    figure, (first, second, third) = pyplot.subplots(1, 3, figsize=(16, 4.5))
    for colour, name in zip(_COLOURS, BENCHMARKS):
        rows = [r for r in published.tested() if (r.family, r.round, r.benchmark) == ("tpu-v3", "v0.6", name)]
        rows.sort(key=lambda r: r.accelerators)
        cores = [2 * r.accelerators for r in rows]
        first.plot(cores, [r.batch for r in rows], "o-", color=colour, label=name)
        curve = convergence.curve(name, "v0.6")
        batches = [curve.batches[0] * (curve.batches[1] / curve.batches[0]) ** (i / 40) for i in range(41)]
        second.plot(batches, [curve.epochs(b) for b in batches], "-", color=colour, label=name)
        second.fill_between(
            batches, *zip(*(curve.interval(b) for b in batches)), color=colour, alpha=0.15, linewidth=0
        )
        every = [r for r in published.rows() if (r.round, r.benchmark) == ("v0.6", name)]
        second.plot([r.batch for r in every], [r.epochs for r in every], "^", color=colour, markersize=4)
        third.plot(cores, [r.seconds for r in rows], "^", color=colour)
        values = fitting.constants("tpu-v3")
        predicted = [fitting.seconds(r, values, curve.epochs(r.batch)) for r in rows]
        third.plot(cores, predicted, "-", color=colour, label=name)
    first.set(
        xscale="log",
        yscale="log",
        xlabel="cores",
        ylabel="global batch",
        title="Figure 7: batches (published)",
    )
    second.set(
        xscale="log",
        yscale="log",
        xlabel="global batch",
        ylabel="epochs",
        title="Figure 8: epochs to converge",
    )
    third.set(xscale="log", yscale="log", xlabel="cores", ylabel="seconds")
    third.set_title("Figure 9: seconds (lines: model, triangles: published)")
    for axes in (first, second, third):
        axes.legend(fontsize=8)
    figure.savefig(path, dpi=100, bbox_inches="tight")
    pyplot.close(figure)


def scatter(path: Path) -> None:
    """Plots, for every row, the time predicted without its system against the published time."""
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(figsize=(6, 6))
    for colour, name in zip(_COLOURS, BENCHMARKS):
        for family, mark in (("tpu-v3", "o"), ("v100", "s")):
            tests = [
                t for t in fitting.committed_tests() if (t.row.benchmark, t.row.family) == (name, family)
            ]
            label = name if mark == "o" else None
            seconds = [t.row.seconds for t in tests]
            axes.plot(seconds, [t.together for t in tests], mark, color=colour, label=label, alpha=0.8)
    line = [10, 20_000]
    axes.plot(line, line, "k-", linewidth=0.8)
    for factor in (1.4, 1 / 1.4):
        axes.plot(line, [factor * x for x in line], "k:", linewidth=0.8)
    axes.set(xscale="log", yscale="log", xlabel="published seconds", ylabel="predicted without the system")
    axes.set_title("TPU v3 (circles) and V100 (squares); dotted: 40 %")
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=100, bbox_inches="tight")
    pyplot.close(figure)


def families(path: Path) -> None:
    """Plots, for every published score, the minutes predicted without its system against the published ones."""
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(figsize=(8, 6))
    marks = {"NVIDIA": "o", "Google": "s", "AMD": "^", "Intel": "v", "Graphcore": "D", "Huawei": "P"}
    tests = law_fit.left_out("system")
    counts = Counter(_kind(test.row.chip) for test in tests)
    family = {
        test.row.chip: _kind(test.row.chip)
        if counts[_kind(test.row.chip)] >= 10
        else f"other {law.vendor(test.row.chip)}"
        for test in tests
    }
    groups = sorted(set(family.values()))
    colours = pyplot.get_cmap("tab20", len(groups))
    for i, group in enumerate(groups):
        mine = [test for test in tests if family[test.row.chip] == group]
        axes.plot(
            [test.row.minutes for test in mine],
            [test.minutes for test in mine],
            marks[law.vendor(mine[0].row.chip)],
            color=colours(i),
            label=f"{group} ({len(mine)})",
            markersize=4,
            alpha=0.7,
            linestyle="",
        )
    line = [0.1, 1000]
    axes.plot(line, line, "k-", linewidth=0.8)
    for factor in (1.3, 1 / 1.3):
        axes.plot(line, [factor * x for x in line], "k:", linewidth=0.8)
    axes.set(xscale="log", yscale="log", xlabel="published minutes", ylabel="predicted without the system")
    axes.set_title(f"{len(tests):,} scores of rounds v0.6 to v5.1; dotted: 30 %")
    axes.legend(fontsize=7, ncol=2)
    figure.savefig(path, dpi=100, bbox_inches="tight")
    pyplot.close(figure)


def _kind(chip: str) -> str:
    """An accelerator's family: its name without its board."""
    return chip.split("-")[0]


def sizes(path: Path, found: Sequence[Size], title: str) -> None:
    """Plots minutes with their interval, and dollars, against the number of accelerators."""
    pyplot = _pyplot()
    many = [size.accelerators for size in found]
    figure, axes = pyplot.subplots(figsize=(7, 4.2))
    axes.fill_between(many, [s.low for s in found], [s.high for s in found], color=_COLOURS[0], alpha=0.2)
    axes.plot(many, [s.minutes for s in found], "o-", color=_COLOURS[0])
    axes.set(xscale="log", yscale="log", xlabel="accelerators", ylabel="minutes", title=title)
    axes.set_xscale("log", base=2)
    axes.yaxis.label.set_color(_COLOURS[0])
    if all(size.dollars is not None for size in found):
        right = axes.twinx()
        right.plot(many, [s.dollars for s in found], "s--", color=_COLOURS[1])
        right.set(yscale="log", ylabel="USD a run")
        right.yaxis.label.set_color(_COLOURS[1])
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
