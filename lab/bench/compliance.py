"""Speed of `timetotrain check` against the stock checker, on the same machine in the same run.

`python -m lab.bench.compliance FOLDER [-o FILE]`: FOLDER holds checkouts of mlcommons/training_results_v0.7 and v5.0.
The script checks the logs of v0.7, 1,000 logs of v5.0, and one log from the shell, which includes start-up. It takes
the median of `--rounds` rounds, alternating ours and theirs, and measures each side's memory.
"""

import functools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

from lab.bench.harness import ROOT, scripts
from lab.bench.harness.rounds import alternate
from lab.bench.harness.scripts import RESULTS, head, write

# The stock command line checks one file per process; package_checker uses it in one process for all.
_STOCK_TREE = """
import sys
from lab.bench.harness import stock_checker
for path in sys.stdin.read().split("\\n"):
    stock_checker.verdict(path, sys.argv[1], seconds=600)
"""


def _measure(command: list[str], text: str = "") -> tuple[float, float, float]:
    """Runs a command: (seconds, processor seconds, peak resident MB of the largest process)."""
    # wait4 reports the peak of the child and of the descendants that it waited for.
    with tempfile.TemporaryFile() as source:
        source.write(text.encode())
        source.seek(0)
        started = time.perf_counter()
        child = subprocess.Popen(
            command, cwd=ROOT, stdin=source, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        _, status, usage = os.wait4(child.pid, 0)
        seconds = time.perf_counter() - started
    child.returncode = os.waitstatus_to_exitcode(status)
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def _compare(rounds: int, ours: list[str], theirs: list[str], text: str = "") -> dict:
    sides = {"ours": (ours, ""), "stock": (theirs, text)}
    measured = alternate(
        {side: functools.partial(_measure, *arguments) for side, arguments in sides.items()}, rounds
    )
    return {
        side: {
            "seconds": round(statistics.median(row[0] for row in rows), 3),
            "processor_seconds": round(statistics.median(row[1] for row in rows), 3),
            "all_seconds": [round(row[0], 3) for row in rows],
            "megabytes": round(max(row[2] for row in rows), 1),
        }
        for side, rows in measured.items()
    }


def main() -> None:
    """Measures, prints a table and writes the result file."""
    parser = scripts.parser(__doc__, rounds=5)
    parser.add_argument("-o", "--output", type=Path, default=RESULTS / "compliance.json")
    options = scripts.with_folder(parser, "the folder with training_results_v0.7 and v5.0")
    about = {**head(), "mlperf_logging": version("mlperf-logging"), "rounds": options.rounds}
    check = [sys.executable, "-m", "timetotrain", "check"]
    rows: dict[str, dict] = {}
    for name, ruleset, most in (("v0.7", "0.7.0", None), ("v5.0", "5.0.0", 1000)):
        logs = (options.folder / f"training_results_{name}").glob("*/results/*/*/result_*.txt")
        paths = sorted(map(str, logs))[:most]
        stock = [sys.executable, "-c", _STOCK_TREE, ruleset]
        rows[f"{len(paths)} published {name} logs"] = _compare(
            options.rounds, [*check, "--ruleset", ruleset, *paths], stock, "\n".join(paths)
        )
    stock = [sys.executable, "-m", "mlperf_logging.compliance_checker", "--ruleset", "5.0.0"]
    one = [*stock, "--log_output", os.devnull, paths[0]]
    rows["one published v5.0 log from the shell"] = _compare(options.rounds, [*check, paths[0]], one)
    for name, row in rows.items():
        columns = (("seconds", "s"), ("processor_seconds", "s of processor"), ("megabytes", "MB"))
        figures = (
            f"{side} " + ", ".join(f"{one[key]:.2f} {unit}" for key, unit in columns)
            for side, one in row.items()
        )
        print(f"{name}: {'; '.join(figures)}")
    write({**about, "rows": rows}, options.output)


if __name__ == "__main__":
    main()
