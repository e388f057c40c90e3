"""Computes systems/forecast/data/power.csv, the watts of published runs, from their power logs.

    python -m tools.published_power FOLDER

FOLDER has the folders v4.0, v4.1 and v5.0 with the submitters' folders of mlcommons/training_results_<round>, of which
`<org>/results/<system>/<benchmark>/power/result_*/*.txt` is read: a file of power_reading lines per node
(`node_*.txt`) and per switch (`sw_*.txt`). A file's watts are the mean of its readings of at least half of its highest,
which leaves out idling before and after the run. A run's watts are the sum of its files, a row's the median of its
runs. Nodes count those with a file; a run whose log lacks nodes of others is left out.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, median

from common.files import write_csv
from tools.published import command, folders

ROUNDS = ("v4.0", "v4.1", "v5.0")
FIELDS = ("round", "org", "system", "benchmark", "nodes", "node_watts", "switch_watts")
TARGET = Path(__file__).resolve().parents[1] / "systems" / "forecast" / "data" / "power.csv"


def rows(root: Path) -> Iterator[tuple[str, ...]]:
    """The rows of all rounds below `root`, in order."""
    for name, place in folders(root, ROUNDS):
        for folder in sorted(place.glob("*/results/*/*/power")):
            org, _, system, benchmark = folder.relative_to(place).parts[:4]
            runs = [found for run in sorted(folder.iterdir()) if (found := _run(run))]
            if runs:
                most = max(nodes for nodes, _, _ in runs)
                whole_runs = [run for run in runs if run[0] == most]
                watts, switches = (median(run[i] for run in whole_runs) for i in (1, 2))
                yield name, org, system, benchmark, str(most), f"{watts:.0f}", f"{switches:.0f}"


def _run(folder: Path) -> tuple[int, float, float] | None:
    """(nodes, watts of all nodes, watts of all switches); None if there is no reading."""
    nodes = [watts for path in sorted(folder.glob("node_*.txt")) if (watts := _watts(path))]
    switches = [watts for path in sorted(folder.glob("sw_*.txt")) if (watts := _watts(path))]
    return (len(nodes), sum(nodes), sum(switches)) if nodes else None


def _watts(path: Path) -> float:
    """The mean of a log's readings of at least half of the highest; 0 if it has none."""
    found = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        if '"power_reading"' in line and line.startswith(":::MLLOG "):
            try:
                found.append(float(json.loads(line.removeprefix(":::MLLOG "))["value"]))
            except (ValueError, TypeError, KeyError):
                continue
    high = [watts for watts in found if 2 * watts >= max(found)]
    return fmean(high) if high else 0.0


def main(arguments: list[str]) -> int:
    """Writes the table."""
    return command(
        __doc__, arguments, 1, lambda root: write_csv(TARGET, FIELDS, rows(Path(root)), line_end="\n")
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
