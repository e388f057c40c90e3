"""Measures goodput: the part of an undisturbed run's steps that a run keeps under faults.

A fault strikes every `--every` seconds, of the kinds in turn: a rank is killed, a rank is frozen (SIGSTOP), and the
packets between all ranks are dropped for `--cut` seconds. Steps count once they are in a checkpoint, of which every
block of 84 steps writes one. There are three runs: one without faults, one that the launcher starts again, and one that
a loop around the launcher starts again from the last checkpoint. A fault's seconds end with the next new checkpoint.
Needs root, for a network namespace.

    python -m lab.bench.goodput [--backends multiworker pjrt] [--modes MODE ...] [--replicas N] [--seconds N]
                                [--every N] [--cut N]
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import random
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lab.bench.harness import launched, scripts
from lab.bench.harness.scripts import head, write

KINDS = ("killed", "frozen", "partition")
# How a run comes back -> the launcher's flags.
MODES = {"undisturbed": [], "launcher": ["--max_restarts=99"], "loop": []}
FIRST_SECONDS = 600.0  # For the first checkpoint.
POLL_SECONDS = 0.1
# Far more steps than any run gets through.
RUN = ("--config.train_steps=10000000", "--config.seed=1", "--config.checkpoint_blocks=1")


def measure(
    start: Callable[[], Any], mode: str, seconds: float, every: float, cut: Callable[[], Any], seed: int = 0
) -> dict[str, Any]:
    """Runs for `seconds` after the first checkpoint; returns the steps saved in them, and what the faults cost.

    Args:
      start: starts the run, or goes on with it: a `launched.Launched`.
      mode: of MODES.
      seconds: the length.
      every: seconds between two faults.
      cut: cuts the network.
      seed: chooses the ranks.

    Raises RuntimeError if no checkpoint came, or an undisturbed run ended.
    """
    run, rng, faults = start(), random.Random(seed), list[dict[str, Any]]()
    try:
        started = time.monotonic()
        while not run.newest():
            if run.launcher.poll() is not None or time.monotonic() > started + FIRST_SECONDS:
                raise RuntimeError(f"no checkpoint: {run.text[-2000:]}")
            time.sleep(POLL_SECONDS)
        began, first, kinds = time.monotonic(), run.newest(), itertools.cycle(KINDS)
        while (now := time.monotonic() - began) < seconds:
            if run.launcher.poll() is not None:
                if mode != "loop":
                    raise RuntimeError(f"the run ended: {run.text[-2000:]}")
                run.close()
                run = start()
            if faults and "seconds_lost" not in faults[-1] and run.newest() > faults[-1]["step"]:
                faults[-1]["seconds_lost"] = round(now - faults[-1]["at"], 1)
            due = mode != "undisturbed" and now >= every * (len(faults) + 1)
            if due and (pids := run.pids()):
                kind, rank = next(kinds), rng.choice(sorted(pids))
                if kind == "partition":
                    cut()
                else:
                    os.kill(pids[rank], signal.SIGKILL if kind == "killed" else signal.SIGSTOP)
                faults.append({"kind": kind, "rank": rank, "at": round(now, 1), "step": run.newest()})
            time.sleep(POLL_SECONDS)
        return {"steps": run.newest() - first, "seconds": seconds, "faults": faults}
    finally:
        run.close()


def main() -> None:
    parser = scripts.parser(__doc__, "goodput.json")
    parser.add_argument("--backends", nargs="+", default=["multiworker", "pjrt"], choices=launched.BACKENDS)
    parser.add_argument("--modes", nargs="+", default=list(MODES), choices=MODES)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=1800)
    parser.add_argument("--every", type=float, default=30)
    parser.add_argument("--cut", type=float, default=5)
    options = parser.parse_args()
    result = {**head(), "runs": {}}
    if options.output.exists():
        result["runs"] = json.loads(options.output.read_text())["runs"]
    with launched.digits() as data:
        for backend, mode in itertools.product(options.backends, options.modes):
            with tempfile.TemporaryDirectory() as name, launched.network() as network:
                row = {**head(), "replicas": options.replicas, "every": options.every, "cut": options.cut}
                start = functools.partial(
                    launched.Launched, Path(name), data, backend, options.replicas, MODES[mode], *RUN,
                    f"--checkpoint_dir={name}/c", prefix=("ip", "netns", "exec", network),
                )  # fmt: skip
                cut = functools.partial(launched.cut, network, options.cut)
                row |= measure(start, mode, options.seconds, options.every, cut)
            result["runs"].setdefault(backend, {})[mode] = row
            print(
                backend,
                mode,
                row["steps"],
                "steps",
                [f.get("seconds_lost") for f in row["faults"]],
                flush=True,
            )
            write(result, options.output)


if __name__ == "__main__":
    main()
