"""Draws docs/overview.png, the first picture of README.md: `python -m tools.docs.overview [LOG]`.

Left: a run's learning curve and time line, read from its log (make demo writes one). Right: published minutes of round
v5.1 beside forecasts fitted to earlier rounds.
"""

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

from common.files import ROOT
from compliance.submission import runs
from lab.bench import law_fit
from systems.forecast import law
from timetotrain import figures

LOG = ROOT / "results/cpu-tiny/resnet/result_0.txt"
PICTURE = ROOT / "docs/overview.png"
BLUE, ORANGE = "#4c72b0", "#dd8452"


def main(arguments: Sequence[str] | None = None) -> int:
    """Draws the picture; returns the exit status."""
    log = Path(*(sys.argv[1:] if arguments is None else arguments)[:1] or [LOG])
    if not log.is_file():
        print(f"error: {log}: no log; run make demo, or name a log", file=sys.stderr)
        return 2
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure = pyplot.figure(figsize=(12, 4.4))
    grid = figure.add_gridspec(2, 2, height_ratios=(5, 1), width_ratios=(1.25, 1), hspace=0.32, wspace=0.2)
    curve = figure.add_subplot(grid[0, 0])
    _run(curve, figure.add_subplot(grid[1, 0], sharex=curve), runs.read_run(log))
    _forecasts(figure.add_subplot(grid[:, 1]))
    figures.write(PICTURE, figure, dpi=110, bbox_inches="tight")
    print(f"picture  {PICTURE.relative_to(ROOT)}")
    return 0


def _run(curve: Any, line: Any, run: runs.Run) -> None:
    """Draws a run's evaluations, and the time line of its training and evaluations, in seconds since run_start."""
    ((metric, target),) = run.target.items()
    seconds = lambda time_ms: (time_ms - run.run_start) / 1000  # noqa: E731
    times = [seconds(e.time_ms) for e in run.evaluations]
    curve.plot(times, [100 * e.values[metric] for e in run.evaluations], "o-", color=BLUE)
    curve.axhline(100 * target, color="black", linestyle="--", linewidth=0.9)
    place = {"xytext": (4, 4), "textcoords": "offset points", "fontsize": 9}
    curve.annotate(f"target {100 * target:.1f} %", (0, 100 * target), **place)
    curve.set(ylabel="top-1 accuracy, %", title="A run on two CPU cores: the clock stops at the target")
    curve.tick_params(labelbottom=False)
    stop = seconds(run.run_stop)
    spans = [(seconds(e.start), (e.stop - e.start) / 1000) for e in run.evals if e.stop is not None]
    line.broken_barh([(0, stop)], (0, 1), color=BLUE, label="training")
    line.broken_barh(spans, (0, 1), color=ORANGE, label="evaluation")
    line.set(yticks=[], xlabel="seconds since run_start", xlim=(-0.02 * stop, 1.02 * stop))
    line.legend(fontsize=8, ncols=2, loc="upper right", bbox_to_anchor=(1, 1.75), frameon=False)


def _forecasts(axes: Any) -> None:
    """Plots the scores of round v5.1: their minutes, and the forecast fitted to earlier rounds."""
    tests = law_fit.later(law.committed()["kernel"], ["v5.1"])
    for i, name in enumerate(sorted({test.row.benchmark for test in tests})):
        mine = [test for test in tests if test.row.benchmark == name]
        published = [test.row.minutes for test in mine]
        forecast = [test.row.minutes * math.exp(-test.wrong) for test in mine]
        axes.plot(published, forecast, "o" if i < 5 else "s", color=f"C{i % 5}", label=name, alpha=0.8)
    axes.plot([0.2, 400], [0.2, 400], "k-", linewidth=0.8)
    axes.set(xscale="log", yscale="log", xlabel="published minutes", ylabel="forecast minutes")
    axes.set_title("Round v5.1, forecast from earlier rounds")
    axes.legend(fontsize=8)


if __name__ == "__main__":
    sys.exit(main())
