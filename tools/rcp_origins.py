"""Who gave each convergence point, and when: writes compliance/data/rcp_origins.csv.

`python -m tools.rcp_origins REPOSITORY`: REPOSITORY is a clone of mlcommons/logging. A point is its benchmark, batch
size and runs. `since` is the day on which the main branch first had it in any round (first parents only, so a pull
request counts when it was merged).
"""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from pathlib import Path

_OUT = Path(__file__).parents[1] / "compliance" / "data" / "rcp_origins.csv"
_FOLDER = "mlperf_logging/rcp_checker"
_FILE = re.compile(r"training_[\d.]+/rcps_(\w+)\.json$")
COLUMNS = ("benchmark", "batch", "sum", "name", "creator", "platform", "when", "since", "commit")


def main(argv: list[str]) -> int:
    """Writes the table; returns 0."""
    repository = argv[0]

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", "-C", repository, *words], capture_output=True, text=True, check=True
        ).stdout

    rows: dict[tuple[str, str, str], dict[str, str]] = {}
    log = git("log", "--first-parent", "--reverse", "--format=%h %cs", "HEAD", "--", _FOLDER)
    for commit, day in (line.split() for line in log.splitlines()):
        changed = git(
            "diff-tree",
            "-m",
            "--first-parent",
            "-r",
            "--no-commit-id",
            "--diff-filter=AM",
            commit,
            "--",
            _FOLDER,
        )
        for line in changed.splitlines():
            blob, path = line.split()[3], line.split("\t")[-1]
            if match := _FILE.search(path):
                for row in points(match[1], git("cat-file", "blob", blob)):
                    key = row["benchmark"], row["batch"], row["sum"]
                    rows.setdefault(key, {**row, "since": day, "commit": commit})
    with _OUT.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows[key] for key in sorted(rows, key=lambda one: (one[0], float(one[1]))))
    print(f"{len(rows)} points")
    return 0


def points(benchmark: str, text: str) -> list[dict[str, str]]:
    """Returns a row for each point of one file; [] for a file that is not JSON."""
    try:
        content = json.loads(text)
    except ValueError:
        return []
    rows = []
    for name, one in content.items():
        runs = next((one[key] for key in one if key.lower().endswith(" to converge")), [])
        said = {key: str(one.get(key.capitalize(), "")) for key in ("creator", "platform", "when")}
        if runs and one["BS"]:  # one file was a template for a time
            row = {"benchmark": benchmark, "batch": f"{one['BS']:g}", "sum": f"{sum(runs):.9g}", "name": name}
            rows.append(row | said)
    return rows


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
