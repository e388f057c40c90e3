"""Measures how long commands take that should answer at once (--help, --version, lists), each in its own process.

python -m lab.bench.help [--runs=N] prints the median and maximum wall time and the median CPU time, in seconds. The
goal applies to the wall time, which increases on a busy machine.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time

from common.config import benchmarks
from common.files import ROOT

GOAL = 0.5  # Seconds; the goal of issue 30.
COMMANDS = (
    ["timetotrain", "--help"],
    ["timetotrain", "--version"],
    ["timetotrain", "check", "--help"],
    ["timetotrain", "systems", "--help"],
    *(["timetotrain", "run", name, "--help", "--system=cpu-tiny"] for name in benchmarks.NAMES),
    *([name, "--help"] for name in benchmarks.NAMES),
)


def seconds(command: list[str]) -> tuple[float, float]:
    """Returns the wall time and CPU time of `python -m COMMAND`."""
    start, before = time.perf_counter(), os.times()
    subprocess.run([sys.executable, "-m", *command], cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
    after = os.times()
    busy = after.children_user + after.children_system - before.children_user - before.children_system
    return time.perf_counter() - start, busy


def main() -> int:
    """Returns 0 if every median meets the goal, else 1."""
    parser = argparse.ArgumentParser(prog="python -m lab.bench.help", description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=5)
    runs = parser.parse_args().runs
    slow = 0
    for command in COMMANDS:
        times, busy = zip(*(seconds(command) for _ in range(runs)))
        median = statistics.median(times)
        slow += median > GOAL
        cpu = statistics.median(busy)
        print(f"{median:.3f} s, at most {max(times):.3f} s, CPU {cpu:.2f} s  python -m {' '.join(command)}")
    print(f"{len(COMMANDS) - slow} of {len(COMMANDS)} commands answer within {GOAL} s")
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
