"""Writes the table and pictures of a LEGW study from the records of its rows."""

import contextlib
import json
import pathlib
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from common import files
from timetotrain import figures

Groups = dict[str, dict[float, list[float]]]


def publish(study: Any, records: Sequence[dict], folder: pathlib.Path, name: str) -> None:
    """Writes NAME.json and a picture per part into `folder`; prints the table."""
    files.write_atomically(folder / f"{name}.json", json.dumps(records, indent=1).encode() + b"\n")
    print(markdown(study, records))
    drawings = {"methods": _draw_methods, "rates": _draw_rates, "tune": _draw_rates, "long": _draw_curves}
    for part, draw in drawings.items():
        runs = [r for r in records if r["part"] == part and not r["method"].startswith(("warmup", "with"))]
        if runs:
            draw(study, runs, records, folder / f"{part}.png")


def grouped(records: Sequence[dict], key: str) -> Groups:
    """Returns {method: {key: qualities over seeds}} of the runs that did not diverge."""
    groups: Groups = defaultdict(lambda: defaultdict(list))
    for record in records:
        if record["quality"] is not None:
            groups[record["method"]][record[key]].append(record["quality"])
    return groups


def spread(values: Sequence[float]) -> str:
    """Formats values over seeds: "mean +- standard deviation (n)", or the single value."""
    if len(values) == 1:
        return f"{values[0]:.5g}"
    return f"{statistics.mean(values):.5g} ± {statistics.stdev(values):.2g} ({len(values)})"


def cell(qualities: Sequence[float | None]) -> str:
    """Formats runs of one kind: mean and deviation, and how many diverged."""
    finite = [q for q in qualities if q is not None]
    lost = len(qualities) - len(finite)
    if not finite:
        return "diverged" if lost else ""
    return spread(finite) + (f", {lost} diverged" if lost else "")


def markdown(study: Any, records: Sequence[dict]) -> str:
    """Returns the report in Markdown: quality by method and batch, then the other parts as lists."""
    tables = []
    compared = [r for r in records if r["part"] == "methods"]
    if compared:
        batches = sorted({r["batch"] for r in compared})
        lines = []
        for method in dict.fromkeys(r["method"] for r in compared):
            runs = [r for r in compared if r["method"] == method]
            lines.append((method, *(cell([r["quality"] for r in runs if r["batch"] == b]) for b in batches)))
        tables.append(files.markdown_table(("method", *batches), lines))
    rest: dict[tuple, list[float | None]] = defaultdict(list)
    for r in records:
        if r["part"] != "methods":
            rate = "" if r["rate"] is None else f"{r['rate']:.6g}"
            rest[r["part"], r["method"], r["batch"], rate].append(r["quality"])
    if rest:
        lines = [(*names, cell(qualities)) for names, qualities in rest.items()]
        tables.append(files.markdown_table(("part", "method", "batch", "rate", study.unit), lines))
    return "\n\n".join(tables)


def _height(study: Any, quality: float) -> float:
    """Returns the value to draw: perplexity itself, or the error for accuracy; both suit a logarithmic scale."""
    return quality if study.lower_is_better else 1 - quality


@contextlib.contextmanager
def _picture(study: Any, path: pathlib.Path, xlabel: str, ticks: Sequence[float] = ()) -> Iterator[Any]:
    """Yields the axes of a picture of qualities on a logarithmic scale."""
    from matplotlib import ticker

    unit = study.unit if study.lower_is_better else f"1 - {study.unit}"
    with figures.picture(path, xlabel=xlabel, ylabel=unit) as axes:
        if ticks:
            axes.set_xscale("log")
            axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
            axes.set_xticks([], minor=True)
            axes.set_xlim(ticks[0] / 1.2, ticks[-1] * 1.2)
        yield axes
        # Set after drawing: on an axis that is already logarithmic, Matplotlib computes wrong limits for error bars.
        axes.set_yscale("log")
        if study.lower_is_better:  # Ticks show 122, not 1.22 x 10^2.
            axes.yaxis.set_major_formatter(ticker.LogFormatter())
            axes.yaxis.set_minor_formatter(ticker.LogFormatter(labelOnlyBase=False))
        axes.grid(alpha=0.3)


def _draw_methods(study: Any, runs: Sequence[dict], records: Sequence[dict], path: pathlib.Path) -> None:
    """Draws figures 1, 4 and 5: quality over batch, mean and range over seeds. A run that diverged has no point."""
    with _picture(study, path, "batch", sorted({r["batch"] for r in runs})) as axes:
        for method, by_batch in grouped(runs, "batch").items():
            batches = sorted(by_batch)
            values = [[_height(study, q) for q in by_batch[b]] for b in batches]
            means = [statistics.mean(v) for v in values]
            reach = [[m - min(v) for m, v in zip(means, values)], [max(v) - m for m, v in zip(means, values)]]
            axes.errorbar(batches, means, yerr=reach, marker="o", label=method, capsize=3)


def _draw_rates(study: Any, runs: Sequence[dict], records: Sequence[dict], path: pathlib.Path) -> None:
    """Draws figure 6: quality over rate, with LEGW's for comparison."""
    with _picture(study, path, "learning rate", sorted({r["rate"] for r in runs})) as axes:
        for method, by_rate in grouped(runs, "rate").items():
            rates = sorted(by_rate)
            means = [_height(study, statistics.mean(by_rate[r])) for r in rates]
            axes.plot(rates, means, marker="o", label=method)
        batch = runs[0]["batch"]
        ours = [r for r in records if (r["part"], r["method"], r["batch"]) == ("methods", "legw", batch)]
        values = [r["quality"] for r in ours if r["quality"] is not None]
        if values:
            mean = _height(study, statistics.mean(values))
            axes.axhline(mean, color="k", linestyle="--", label="legw")


def _draw_curves(study: Any, runs: Sequence[dict], records: Sequence[dict], path: pathlib.Path) -> None:
    """Draws figure 7: quality over evaluations."""
    with _picture(study, path, "evaluation") as axes:
        for record in runs:
            values = [_height(study, q) for q in record["evaluations"]]
            axes.plot(range(1, len(values) + 1), values, label=record["method"])
