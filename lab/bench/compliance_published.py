"""Compares the verdict of `compliance check` with the stock checker's on every published log.

`python -m lab.bench.compliance_published FOLDER [--every N] [--stock FILE] [-o FILE]`: FOLDER holds checkouts of the
public repositories mlcommons/training_results_v0.6 ... v5.1, each in a folder of that name. Both checkers judge each
`result_*.txt` below `ORG/results/` with the ruleset of its round. The file has the counts of verdicts by round and of
differences by class, with one example log per class. The stock checker takes most of the time; --stock keeps its
verdicts in a file, so that an interrupted run can resume, and a second run repeats only our side.
"""

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from lab.bench.harness import scripts, stock_checker
from lab.bench.harness.scripts import RESULTS, head, write
from lab.bench.harness.stock_checker import Kept, Stock

_ROUND = re.compile(r"training_results_v(\d+\.\d+)$")


class Pair(NamedTuple):
    """Both verdicts on one log: `theirs` is pass, fail or crash; `why` says what caused a difference."""

    path: str
    round: str
    passes: bool
    theirs: str
    why: str


def logs(folder: Path) -> Iterator[tuple[str, str]]:
    """Yields (log, round) of every published log below `folder`."""
    for repository in sorted(folder.glob("training_results_v*")):
        if match := _ROUND.search(repository.name):
            for path in sorted(repository.glob("*/results/**/result_*.txt")):
                if path.is_file():
                    yield str(path), match[1]


def judge(task: tuple[str, str, Stock | None]) -> tuple[Pair, Stock]:
    """Returns both verdicts on a log, and the stock checker's in full; runs the stock checker if none is given."""
    from compliance.log.check_log import check_log

    path, name, theirs = task
    ruleset = f"{name}.0"
    ours = check_log(path, ruleset)
    if theirs is None:
        verdict, messages = stock_checker.verdict(path, ruleset, 60, stock_checker.config(path, ruleset))
        theirs = Stock(verdict, " ".join(messages[0].split())[:80] if messages else "")
    why = ""
    if ours.passes != (theirs.verdict == "pass"):
        errors = [finding.rule for finding in ours.findings if finding.severity == "error"]
        said = f": {theirs.message}" if theirs.message else ""
        why = f"ours {', '.join(sorted(set(errors))) or 'passes'}; stock {theirs.verdict}{said}"
    return Pair(path, name, ours.passes, theirs.verdict, why), theirs


def _start() -> None:
    stock_checker.make_fast()


def summary(pairs: list[Pair], folder: Path) -> dict:
    """Returns the counts by round and the differences by class."""
    rounds: dict[str, Counter] = defaultdict(Counter)
    classes: dict[str, dict] = {}
    for pair in pairs:
        counts = rounds[pair.round]
        counts["logs"] += 1
        counts[f"stock {pair.theirs}"] += 1
        counts["ours pass" if pair.passes else "ours fail"] += 1
        if pair.why:
            counts["different"] += 1
            example = os.path.relpath(pair.path, folder)
            one = classes.setdefault(pair.why, {"logs": 0, "rounds": [], "example": example})
            one["logs"] += 1
            one["rounds"] = sorted({*one["rounds"], pair.round})
    return {"rounds": {name: dict(counts) for name, counts in sorted(rounds.items())}, "classes": classes}


def main() -> None:
    """Judges the logs, prints the counts and writes the result file."""
    parser = scripts.parser(__doc__)
    parser.add_argument("--every", type=int, default=1, help="only every Nth log")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--stock", type=Path, help="where the stock checker's verdicts are kept")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS / "compliance_published.json")
    options = scripts.with_folder(parser, "the folder with training_results_v0.6 ... v5.1")
    kept, pairs = Kept(options.stock, options.folder), []
    tasks = [(path, name, kept.get(path)) for path, name in list(logs(options.folder))[:: options.every]]
    with ProcessPoolExecutor(options.processes, initializer=_start) as pool:
        done = pool.map(judge, tasks, chunksize=16)
        for pair, theirs in tqdm(done, total=len(tasks), unit=" logs", mininterval=10):
            pairs.append(pair)
            kept.add(pair.path, theirs)
    found = summary(pairs, options.folder)
    for name, counts in found["rounds"].items():
        print(f"v{name}: " + ", ".join(f"{count} {what}" for what, count in counts.items()))
    for why, one in found["classes"].items():
        print(f"{one['logs']} logs of {', '.join(one['rounds'])}: {why} ({one['example']})")
    about = {**head(), "mlperf_logging": version("mlperf-logging"), "every": options.every}
    write({**about, **found}, options.output)


if __name__ == "__main__":
    main()
