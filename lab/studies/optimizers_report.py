"""Writes the tables and the picture of the contest of optimizers, and the hours of its plan."""

import argparse
import csv
import importlib
import json
import pathlib
import statistics
from collections.abc import Sequence

from common import files
from common.config import overrides as configs
from common.config.clock import Clock
from common.errors import UserError
from compliance.submission import students_t
from lab.studies import contest_rows, report
from lab.studies.contest import STAGES, Row, whole_trials
from lab.studies.contest_rows import Contest
from lab.studies.runner import published

NEAR = 0.01  # "Within 1 % of the best".
PLAN = ("batch", "step, processor s", "a whole run, core-hours", "runs", "done", "missing, core-hours")


def plan(
    contest: Contest,
    names: Sequence[str],
    batches: Sequence[int],
    stages: Sequence[str],
    args: argparse.Namespace,
) -> list[tuple[str, ...]]:
    """Returns the lines of a table with the head PLAN: the core-hours of rows that are not done.

    They follow from the processor time of a step at each batch, which other programs change little. A step of every
    optimizer counts as the preset's; docs/optimizers.md has their ratios.
    """
    arena = contest.arena
    entries = len([e for e in arena.entries() if e.name in names])
    lines = []
    for batch in batches:
        step = contest.step_seconds(batch)
        counts = {
            "short": args.trials * entries,
            "tune": whole_trials(args.trials) * entries,
            "decay": entries * bool(arena.decay),
            "no-warmup": entries,
            "final": args.seeds * entries,
            "scaled": args.seeds * entries * (batch != contest.base),
            "legw": args.seeds * len(set(arena.legw) & set(names)),
        }
        done, hours = 0, 0.0
        for stage in stages:
            known = contest.rows(names, [batch], [stage])
            ready = sum(contest.record(row) is not None for row in known)
            done += ready
            hours += (counts[stage] - ready) * contest.hours(stage, batch, step)
        one = contest.hours("final", batch, step)
        runs = sum(counts[stage] for stage in stages)
        lines.append((str(batch), f"{step:.4f}", f"{one:.3f}", str(runs), str(done), f"{hours:.1f}"))
    return lines


def write_plan(benchmark: str, lines: Sequence[tuple[str, ...]]) -> None:
    """Replaces the benchmark's lines in lab/studies/optimizers/plan.csv."""
    path = contest_rows.ROOT / "lab/studies/optimizers/plan.csv"
    before = list(csv.reader(path.read_text(encoding="utf-8").splitlines()))[1:] if path.is_file() else []
    others = [line for line in before if line[0] != benchmark]
    files.write_csv(
        path,
        ("benchmark", *PLAN),
        sorted([*others, *([benchmark, *line] for line in lines)], key=lambda line: (line[0], int(line[1]))),
    )


def publish(contest: Contest, folder: pathlib.Path) -> None:
    """Writes results.json (all records), results.csv (a line a cell) and steps.png.

    Raises:
      UserError: the folder's results.json has runs that the new one would lose.
    """
    found = [(row, record) for row in contest.everything() if (record := contest.record(row))]
    if not found:
        print(f"{contest.arena.benchmark}: no run is done")
        return
    path, kept = folder / "results.json", {(r["config"], r["seed"]) for _, r in found}
    before = published(path) if path.is_file() else {}
    if lost := [record for key, record in before.items() if key not in kept]:
        raise UserError(
            f"{path}: {len(lost)} of its runs have another configuration ({lost[0]['stage']} of "
            f"{lost[0]['optimizer']} at {lost[0]['batch']}) and would be lost; leave out what changes it, or move "
            "the file away"
        )
    text = json.dumps([record for _, record in found], indent=1) + "\n"
    files.write_atomically(path, text.encode())
    head, lines = table(contest, found)
    files.write_csv(folder / "results.csv", head, lines)
    print(files.markdown_table(head, lines))
    _draw(contest, found, folder / "steps.png")


def table(contest: Contest, found: list[tuple[Row, dict]]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Returns head and lines: what the trials found, how sensitive it is, and what the final runs reached."""
    arena = contest.arena
    head = (
        "optimizer",
        "batch",
        "short trials",
        f"best after {arena.short_epochs} epochs",
        "within 1 %",
        "rates within 1 %",
        "whole trials",
        f"best {arena.unit}, validation",
        "rate, momentum or beta, warmup",
        "with a falling rate",
        "best run without warmup",
        f"{arena.unit}, test",
        "seeds",
        "scaled from another batch",
        *(f"steps to {target:g}" for target in arena.targets),
        "minutes of a run",
        "hours of all",
    )
    cells = dict.fromkeys((row.optimizer, row.batch) for row, _ in found)
    return head, [_line(contest, found, *cell) for cell in sorted(cells, key=lambda cell: (cell[1], cell[0]))]


def _line(contest: Contest, found: list[tuple[Row, dict]], name: str, batch: int) -> tuple[str, ...]:
    own = _by_stage(found, name, batch)
    final = own["final"] or own["legw"]
    counted = _counted(contest, own)
    steps = [[steps_to_target(contest, x, target) for x in counted] for target in contest.arena.targets]
    minutes = [x["minutes"] for stage in STAGES for _, x in own[stage]]
    return (
        name,
        str(batch),
        *_sensitivity(contest, own["short"]),
        *_tuned(contest, own["tune"]),
        _interval([x["quality"] for _, x in own["decay"]]),
        _interval([x["quality"] for _, x in own["no-warmup"]]),
        _interval([x["quality"] for _, x in final]),
        str(len(final)) if final else "",
        _scaled(own["scaled"]),
        *(_interval(values, digits=0) for values in steps),
        _interval([x["minutes"] for _, x in final or own["tune"]], digits=2),
        f"{sum(minutes) / 60:.2f}",
    )


def _by_stage(found: list[tuple[Row, dict]], name: str, batch: int) -> dict[str, list[tuple[Row, dict]]]:
    return {
        stage: [(r, x) for r, x in found if (r.stage, r.optimizer, r.batch) == (stage, name, batch)]
        for stage in STAGES
    }


def _scaled(rows: list[tuple[Row, dict]]) -> str:
    """Returns the cell about scaled runs: their quality by the batch that their point was tuned at."""
    bases = sorted({row.base for row, _ in rows})
    found = {base: [record["quality"] for row, record in rows if row.base == base] for base in bases}
    return "; ".join(f"{_interval(values)} from {base}" for base, values in found.items())


def _sensitivity(contest: Contest, trials: list[tuple[Row, dict]]) -> tuple[str, ...]:
    """Returns the cells about the short trials: number, best, share near the best, their rates."""
    sound = contest.ranked(trials)
    if not sound:
        return str(len(trials)) if trials else "", "", "", ""
    lower, best = contest.arena.lower_is_better, sound[0][1]["quality"]
    limit = best * (1 + NEAR if lower else 1 - NEAR)
    near = [
        row.point["rate"] for row, x in sound if (x["quality"] <= limit if lower else x["quality"] >= limit)
    ]
    rates = f"{min(near):.2g} to {max(near):.2g}"
    return str(len(trials)), f"{best:.4g}", f"{len(near)} of {len(trials)}", rates


def _tuned(contest: Contest, trials: list[tuple[Row, dict]]) -> tuple[str, ...]:
    """Returns the cells about the whole trials: number, best, the winner's point."""
    sound = contest.ranked(trials)
    if not sound:
        return str(len(trials)) if trials else "", "", ""
    row, record = sound[0]
    point = f"{row.point['rate']:.3g}, {row.point['kept']:.3g}, {row.point['warmup']:.2g}"
    return str(len(trials)), f"{record['quality']:.4f}", point


def _interval(values: Sequence[float | None], digits: int = 4) -> str:
    """Returns mean ± 95 % interval; says how many runs have no value."""
    sound = [value for value in values if value is not None]
    missing = f", {len(values) - len(sound)} without" if len(sound) < len(values) else ""
    if not sound:
        return f"none of {len(values)}" if values else ""
    mean = statistics.mean(sound)
    shown = f"{mean:.{digits}f}"
    if len(sound) > 1:
        t = students_t.quantile(0.975, len(sound) - 1)
        half = t * statistics.stdev(sound) / len(sound) ** 0.5
        shown += f" ± {half:.{digits}f}"
    return shown + missing


def _counted(contest: Contest, own: dict[str, list[tuple[Row, dict]]]) -> list[dict]:
    """Returns the records whose steps count: final or LEGW runs, else the best whole run on validation data."""
    if final := own["final"] or own["legw"]:
        return [record for _, record in final]
    return [record for _, record in contest.ranked([*own["tune"], *own["decay"]])[:1]]


def steps_to_target(contest: Contest, record: dict, target: float) -> int | None:
    """Returns the training steps before a run's first evaluation that meets a target."""
    arena = contest.arena
    preset = importlib.import_module(f"{arena.benchmark}.presets").PRESETS[arena.preset]
    clock = Clock.of(configs.override_all(preset, record["flags"]))
    ends = [block.end_step for block in clock.blocks(0)]
    for end, value in zip(ends, record["evaluations"]):
        if value <= target if arena.lower_is_better else value >= target:
            return end
    return None


def _draw(contest: Contest, found: list[tuple[Row, dict]], path: pathlib.Path) -> None:
    """Draws the steps to the first target against the batch; nothing if no run meets it."""
    curves = _curves(contest, found)
    if not curves:
        path.unlink(missing_ok=True)
        return
    from matplotlib import ticker

    label = f"steps to {contest.arena.targets[0]:g}, test or validation data"
    with report.picture(path, xlabel="batch", ylabel=label) as axes:
        for name, points in curves.items():
            axes.plot(*zip(*points), marker="o", label=name)
        batch, steps = min(point for points in curves.values() for point in points)
        batches = sorted({point[0] for points in curves.values() for point in points})
        if len(batches) > 1:  # Half as many steps at twice the batch.
            ends = (batch, batches[-1])
            axes.plot(ends, [steps * batch / end for end in ends], "k--", linewidth=1, label="equal epochs")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        axes.set_xticks(batches)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(ticker.StrMethodFormatter("{x:,.0f}"))


def _curves(contest: Contest, found: list[tuple[Row, dict]]) -> dict[str, list[tuple[int, float]]]:
    """Returns each optimizer's (batch, mean steps to the first target) where all of a cell's runs meet it."""
    curves: dict[str, list[tuple[int, float]]] = {}
    for name in dict.fromkeys(row.optimizer for row, _ in found):
        for batch in contest.arena.batches:
            records = _counted(contest, _by_stage(found, name, batch))
            steps = [steps_to_target(contest, record, contest.arena.targets[0]) for record in records]
            if steps and None not in steps:
                curves.setdefault(name, []).append((batch, statistics.mean(steps)))
    return curves
