"""Draws docs/overview.png, the first picture of README.md: `python -m tools.docs.overview [LOG]`.

Left: a run's learning curve and time line, read from its log (make demo writes one). Right: published minutes of round
v5.1 beside forecasts fitted to earlier rounds.
"""

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common.files import ROOT, whole
from compliance.submission import runs
from systems.forecast import law, law_fit

LOG = ROOT / "results/cpu-tiny/resnet/result_0.txt"
PICTURE = ROOT / "docs/overview.png"
COLOURS = ("#4c72b0", "#dd8452", "#55a868", "#c44e52", "#8172b3")
_EVAL = "#dd8452"


def main(arguments: Sequence[str] | None = None) -> int:
    """Draws the picture; returns the exit status."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    log = Path(given[0]) if given else LOG
    if not log.is_file():
        print(f"error: {log}: no log; run make demo, or name a log", file=sys.stderr)
        return 2
    with whole(PICTURE) as made:
        draw(runs.read_run(log), made)
    print(f"picture  {PICTURE.relative_to(ROOT)}")
    return 0


def draw(run: runs.Run, path: Path) -> None:
    """Writes a PNG with the picture of `run` and the forecasts."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure = pyplot.figure(figsize=(12, 4.4))
    grid = figure.add_gridspec(2, 2, height_ratios=(5, 1), width_ratios=(1.25, 1), hspace=0.32, wspace=0.2)
    curve = figure.add_subplot(grid[0, 0])
    _curve(curve, run)
    _time_line(figure.add_subplot(grid[1, 0], sharex=curve), run)
    _forecasts(figure.add_subplot(grid[:, 1]))
    figure.savefig(path, dpi=110, bbox_inches="tight", format="png")
    pyplot.close(figure)


def _seconds(run: runs.Run, time_ms: float) -> float:
    return (time_ms - run.run_start) / 1000


def _curve(axes: Any, run: runs.Run) -> None:
    (metric,) = run.target
    times = [_seconds(run, e.time_ms) for e in run.evaluations]
    values = [100 * e.values[metric] for e in run.evaluations]
    axes.plot(times, values, "o-", color=COLOURS[0])
    target = 100 * run.target[metric]
    axes.axhline(target, color="black", linestyle="--", linewidth=0.9)
    axes.annotate(
        f"target {target:.1f} %", (0, target), xytext=(4, 4), textcoords="offset points", fontsize=9
    )
    axes.set(ylabel="top-1 accuracy, %", title="A run on two CPU cores: the clock stops at the target")
    axes.tick_params(labelbottom=False)


def _time_line(axes: Any, run: runs.Run) -> None:
    """Draws blocks and the evaluations inside them."""
    stop = _seconds(run, run.run_stop)
    axes.broken_barh([(0, stop)], (0, 1), color=COLOURS[0], label="training")
    spans = [(_seconds(run, e.start), (e.stop - e.start) / 1000) for e in run.evals if e.stop is not None]
    axes.broken_barh(spans, (0, 1), color=_EVAL, label="evaluation")
    axes.set(yticks=[], xlabel="seconds since run_start", xlim=(-0.02 * stop, 1.02 * stop))
    axes.legend(fontsize=8, ncols=2, loc="upper right", bbox_to_anchor=(1, 1.75), frameon=False)


def _forecasts(axes: Any) -> None:
    """Plots the scores of round v5.1: their minutes, and the forecast fitted to earlier rounds."""
    tests = law_fit.later(law.committed()["kernel"], ["v5.1"])
    names = sorted({test.row.benchmark for test in tests})
    for i, name in enumerate(names):
        mine = [test for test in tests if test.row.benchmark == name]
        axes.plot(
            [test.row.minutes for test in mine],
            [test.row.minutes * math.exp(-test.wrong) for test in mine],
            "o" if i < len(COLOURS) else "s",
            color=COLOURS[i % len(COLOURS)],
            label=name,
            alpha=0.8,
        )
    ends = [0.2, 400]
    axes.plot(ends, ends, "k-", linewidth=0.8)
    axes.set(xscale="log", yscale="log", xlabel="published minutes", ylabel="forecast minutes")
    axes.set_title("Round v5.1, forecast from earlier rounds")
    axes.legend(fontsize=8)


if __name__ == "__main__":
    sys.exit(main())
