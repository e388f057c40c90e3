"""Writes the tables, curve and paired tests of the UCF101 study; trains nothing."""

import dataclasses
import json
import pathlib
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from common import files
from timetotrain import figures

COLUMNS = ("model", "seed", "top1", "minutes", "jobs", "settings")
WANTED = 0.45  # Target top-1 of TSM.
PAIR = ("tsm", "tsn")


@dataclasses.dataclass(frozen=True)
class Prediction:
    """The prediction for one clip: file, class, and the class with the highest score."""

    name: str
    label: str
    found: str

    @property
    def correct(self) -> bool:
        return self.found == self.label

    @property
    def group(self) -> str:
        """Returns class and group: v_PullUps_g10_c01.mp4 belongs to PullUps g10, one person in one place."""
        return re.sub(r"_c\d+\.\w+$", "", self.name)


@dataclasses.dataclass(frozen=True)
class Run:
    """A finished run: row (model, seed, id), record, epochs of its evaluations, prediction for each clip."""

    row: Any
    record: dict
    epochs: Sequence[float]
    predictions: Sequence[Prediction]


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The comparison of TSM and TSN over their common seeds.

    Attributes:
      seeds, clips, groups: counts.
      difference: difference of mean top-1.
      by_clip, by_group: p-values of the paired tests.
    """

    seeds: int
    clips: int
    groups: int
    difference: float
    by_clip: float
    by_group: float


def flip_p_value(differences: Iterable[int]) -> float:
    """Returns the exact two-sided p-value of the sign-flip test: P(|sum| at least as large) under random fair signs.

    For differences -1, 0 and 1 this is McNemar's exact test (the sign test).
    """
    sizes = [abs(d) for d in differences if d]
    # ways[s] counts the subsets with the sum s. The signed sum is 2 s - total.
    ways = [1]
    for size in sizes:
        longer = ways + [0] * size
        for s, count in enumerate(ways):
            longer[s + size] += count
        ways = longer
    total, observed = sum(sizes), abs(sum(differences))
    return sum(count for s, count in enumerate(ways) if abs(2 * s - total) >= observed) / 2 ** len(sizes)


def compare(runs: Sequence[Run]) -> Comparison | None:
    """Runs the paired tests on correct answers summed over the seeds, by clip and by group of clips.

    Clips of a group show one person in one place, so they are not independent. The test by group accounts for this.
    """
    by_model = {model: {r.row.seed: r for r in runs if r.row.model == model} for model in PAIR}
    seeds = sorted(set.intersection(*(set(found) for found in by_model.values())))
    if not seeds:
        return None
    clips: dict[str, int] = defaultdict(int)
    groups: dict[str, int] = defaultdict(int)
    for sign, model in zip((1, -1), PAIR):
        for seed in seeds:
            for p in by_model[model][seed].predictions:
                clips[p.name] += sign * p.correct
                groups[p.group] += sign * p.correct
    return Comparison(
        len(seeds),
        len(clips),
        len(groups),
        sum(clips.values()) / len(clips) / len(seeds),
        flip_p_value(list(clips.values())),
        flip_p_value(list(groups.values())),
    )


def publish(runs: Sequence[Run], folder: pathlib.Path) -> bool:
    """Writes results.csv, predictions.csv and curve.png, prints the table; returns whether the goals are met."""
    if not runs:
        print("no run is finished")
        return False
    files.write_csv(folder / "results.csv", COLUMNS, map(_figures, runs))
    _write_predictions(runs, folder / "predictions.csv")
    comparison = compare(runs)
    print(markdown(runs, comparison))
    draw(runs, folder / "curve.png")
    reached = [one.record["quality"] for one in runs if one.row.model == "tsm"]
    return bool(comparison and statistics.mean(reached) >= WANTED and comparison.difference > 0)


def _name(one: Run) -> str:
    return f"{one.row.model}-{one.row.seed}"


def _figures(one: Run) -> list[Any]:
    """Returns the row of results.csv."""
    figures = {"top1": round(one.record["quality"], 4), "minutes": round(one.record["minutes"], 2)}
    fields = {**vars(one.row), **figures, "jobs": one.record["jobs"]}
    return [fields[name] for name in COLUMNS]


def _write_predictions(runs: Sequence[Run], path: pathlib.Path) -> None:
    said = [{p.name: p for p in one.predictions} for one in runs]
    lines = [[name, said[0][name].label, *(table[name].found for table in said)] for name in sorted(said[0])]
    files.write_csv(path, ["clip", "label", *map(_name, runs)], lines)


def markdown(runs: Sequence[Run], found: Comparison | None) -> str:
    """Formats top-1 by network and seed, the paired tests, and top-1 by class."""
    seeds = sorted({one.row.seed for one in runs})
    lines = []
    for model in PAIR:
        mine = {one.row.seed: one.record for one in runs if one.row.model == model}
        if not mine:
            continue
        values = [record["quality"] for record in mine.values()]
        cells = [f"{mine[seed]['quality']:.1%}" if seed in mine else "" for seed in seeds]
        deviation = f"{100 * statistics.stdev(values):.1f}" if len(values) > 1 else ""
        minutes = statistics.mean(record["minutes"] for record in mine.values())
        lines.append((model, *cells, f"{statistics.mean(values):.1%}", deviation, f"{minutes:.1f}"))
    seeds_head = (f"seed {seed}" for seed in seeds)
    blocks = [files.markdown_table(("network", *seeds_head, "mean", "deviation", "minutes a run"), lines)]
    if found:
        blocks.append(
            f"TSM less TSN: {100 * found.difference:+.1f} points of top-1, {found.clips} clips, seeds: {found.seeds}. "
            f"Exact paired tests of the answers summed over the seeds, two-sided: p = {found.by_clip:.2g} by "
            f"clip, p = {found.by_group:.2g} by group ({found.groups} groups of clips that show one person in one "
            "place)."
        )
    right: dict[str, dict[str, list[bool]]] = defaultdict(lambda: {model: [] for model in PAIR})
    for one in runs:
        for p in one.predictions:
            right[p.label][one.row.model].append(p.correct)
    classes = [
        (label, *(f"{statistics.mean(hits):.0%}" if hits else "" for hits in by_model.values()))
        for label, by_model in sorted(right.items())
    ]
    return "\n\n".join([*blocks, files.markdown_table(("class", *PAIR), classes)])


def draw(runs: Sequence[Run], path: pathlib.Path) -> None:
    """Draws top-1 on the test clips over epochs: thin lines for the runs, a thick one for the mean of each network."""
    labels = {"xlabel": "epoch", "ylabel": "top-1 on the test clips"}
    with figures.picture(path, title="UCF101, ten classes, from scratch", **labels) as axes:
        for color, model in zip(("C0", "C1"), PAIR):
            mine = [one for one in runs if one.row.model == model]
            for one in mine:
                axes.plot(one.epochs, one.record["evaluations"], color=color, alpha=0.35, linewidth=1)
            if mine:  # All have the same settings, and so the same epochs.
                means = map(statistics.mean, zip(*(one.record["evaluations"] for one in mine)))
                axes.plot(mine[0].epochs, list(means), color=color, marker=".", label=model.upper())
        axes.axhline(WANTED, color="k", linestyle="--", linewidth=1, label="goal of TSM")


def tries(records: Sequence[pathlib.Path], folder: pathlib.Path) -> None:
    """Writes tuning.csv: every try on held-out training groups, the best first; a run that diverged has no top-1."""
    found = [json.loads(path.read_text()) for path in records]
    found.sort(key=lambda record: -(record["quality"] or 0))
    lines = []
    for record in found:
        top1 = "" if record["quality"] is None else f"{record['quality']:.4f}"
        lines.append((record["model"], record["seed"], top1, f"{record['minutes']:.1f}", record["settings"]))
    files.write_csv(folder / "tuning.csv", ("network", "seed", "top1", "minutes", "settings"), lines)
