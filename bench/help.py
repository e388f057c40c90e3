"""Measures how long commands take that shall answer at once: --help, --version and lists, each in a process of its own.

python -m bench.help [--runs=N] prints the median and the greatest wall time, in seconds.
"""

from __future__ import annotations

import argparse
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


def seconds(command: list[str]) -> float:
    """Returns the wall time of `python -m COMMAND`."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-m", *command], cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - start


def main() -> int:
    """Returns 0 if every median meets the goal, else 1."""
    parser = argparse.ArgumentParser(prog="python -m bench.help", description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=5)
    runs = parser.parse_args().runs
    slow = 0
    for command in COMMANDS:
        times = [seconds(command) for _ in range(runs)]
        median = statistics.median(times)
        slow += median > GOAL
        print(f"{median:.3f} s, at most {max(times):.3f} s  python -m {' '.join(command)}")
    print(f"{len(COMMANDS) - slow} of {len(COMMANDS)} commands answer within {GOAL} s")
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
