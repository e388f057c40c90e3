"""Runs numbered trials in forked processes with limited memory; one that dies or hangs ends only its process."""

import argparse
import collections
import json
import multiprocessing
import os
import resource
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lab.bench.harness import scripts
from lab.bench.harness.scripts import write

CHUNK = 20  # Trials per process.
Check = Callable[[Mapping[str, Any]], bool]


def memory(key: str) -> int:
    """Returns a size from /proc/self/status, such as VmRSS, in bytes."""
    return int(Path("/proc/self/status").read_text().partition(f"{key}:")[2].split()[0]) * 1024


def _work(
    numbers: Sequence[int], run: Callable[[int, Path], dict], folder: Path, limit: int, results: Any
) -> None:
    """Runs in a forked process: runs trials one after the other and sends the observations."""
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)  # For the libraries' own lines, from C++.
    for number in numbers:
        results.send(("begins", number))
        with tempfile.TemporaryDirectory(dir=folder) as place:
            results.send(("ends", {"number": number, **run(number, Path(place))}))
    results.send(("done", None))


def tried(
    numbers: Sequence[int],
    run: Callable[[int, Path], dict[str, Any]],
    folder: Path,
    limit: int,
    seconds: float,
    kind: Callable[[int], str],
) -> Iterator[dict[str, Any]]:
    """Yields the observations of each trial; if a trial ends or hangs its process, a new process continues.

    Args:
      numbers: numbers of the trials.
      run: makes and tries one in an empty folder; returns the observations.
      folder: for the trials' folders.
      limit: address space of a process in bytes.
      seconds: a longer trial counts as hanging.
      kind: name of a trial whose process died.
    """
    context = multiprocessing.get_context("fork")
    waiting = list(numbers)
    while waiting:
        ours, theirs = context.Pipe(duplex=False)
        worker = context.Process(target=_work, args=(waiting[:CHUNK], run, folder, limit, theirs))
        worker.start()
        theirs.close()
        current, left = None, waiting[:CHUNK]
        while True:
            try:
                word, value = ours.recv() if ours.poll(seconds) else ("hangs", None)
            except EOFError:
                word, value = "died", None
            if word == "begins":
                current = value
            elif word == "ends":
                left.remove(value["number"])
                yield value
            else:
                break
        if word == "hangs":
            worker.kill()
        worker.join()
        if word != "done" and current in left:
            left.remove(current)
            yield {"number": current, "kind": kind(current), "died": word, "exit": worker.exitcode}
        waiting = [*left, *waiting[CHUNK:]]


def options(description: str | None, cases: int) -> argparse.Namespace:
    """Returns the options of a script that tries `cases` cases by default: cases, seed, only, output."""
    parser = scripts.parser(description)
    parser.add_argument("--output", type=Path, help="result file")
    parser.add_argument("--cases", type=int, default=cases)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, nargs="*", help="numbers of cases")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    return parser.parse_args()


def is_bad(case: Mapping[str, Any], promises: Mapping[str, Check]) -> bool:
    """Whether a case died, hung or broke a promise."""
    return "died" in case or any(broken(case) for broken in promises.values())


def record(
    cases: Iterable[dict[str, Any]],
    chosen: argparse.Namespace,
    about: Mapping[str, Any],
    promises: Mapping[str, Check],
    counted: Mapping[str, Check],
    every: int,
) -> None:
    """Prints progress, the broken cases and the counts; writes the result if there is an `--output`.

    Args:
      cases: the observations, from `tried`.
      chosen: from `options`.
      about: head of the result: date, machine, versions.
      promises: {name: whether a case broke it}.
      counted: {name: whether a case counts}, for other counts.
      every: cases between two lines of progress.
    """
    seen, began = [], time.time()
    for case in cases:
        seen.append(case)
        if len(seen) % every == 0:
            print(f"{len(seen)} cases, {time.time() - began:.0f} s", flush=True)
        if is_bad(case, promises) or chosen.only:
            print(json.dumps(case), flush=True)
    alive = [case for case in seen if "died" not in case]
    result = {
        **about,
        "seed": chosen.seed,
        "seconds": round(time.time() - began),
        "cases": len(seen),
        **{name: sum(map(check, alive)) for name, check in {**counted, **promises}.items()},
        "died_or_hung": len(seen) - len(alive),
        "kinds": dict(sorted(collections.Counter(case["kind"] for case in seen).items())),
    }
    print(json.dumps(result, indent=1))
    if chosen.output:
        write({**result, "broken": [case for case in seen if is_bad(case, promises)]}, chosen.output)
