"""Compares our judgment of published submitters' trees with the stock tools': package, convergence, runs, scores.

`python -m lab.bench.compliance_trees FOLDER [--most-logs N] [--logs ours|stock] [--stock FILE] [-o FILE]`: FOLDER holds
training_results_vX.Y/SUBMITTER/{results,systems} (or vX.Y/SUBMITTER), unpacked from mlcommons/training_results_vX.Y.
The peers are mlperf_logging's package_checker, rcp_checker, repo_checker and result_summarizer. They run on a copy,
because they write scaling.json. The peers always use the stock checker's verdicts on logs. With --logs stock our side
uses them, too, so that only the judgment of trees differs. --stock reads these verdicts from the file that
lab.bench.compliance_published keeps. Writes counts and every difference, by class.
"""

import argparse
import contextlib
import functools
import io
import json
import logging
import os
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from tqdm import tqdm

from common.files import write_atomically
from compliance.findings import ERROR, finding
from compliance.log.check_log import LogResult, check_logs
from compliance.submission import rcp, rounds, summary, tree_params
from compliance.submission.runs import read_run
from compliance.submission.tree import judge_tree
from lab.bench.harness import scripts
from lab.bench.harness.scripts import RESULTS, head
from lab.bench.harness.stock_checker import Kept, Stock

# What package_checker.py and repo_checker.py log as an error -> the kind of error.
_STOCK_KINDS = {
    "Incorrect number of files": "runs",
    "files do not comply": "logs",
    "Seed checker failed": "seeds",
    "RCP Test Failed": "convergence",
    "System description file checker failed": "description",
    "git-unfriendly": "repository",
    "> 50MB": "repository",
    "broken symbolic links": "repository",
}
_OUR_KINDS = {
    "tree.run-count": "runs",
    "tree.score": "logs",
    "tree.seed": "seeds",
    "tree.rcp": "convergence",
    "tree.name": "repository",
    "tree.size": "repository",
    "tree.link": "repository",
    "system.field": "description",
    "system.json": "description",
    "tree.system-missing": "description",
}


class _Logs:
    """The stock checker's verdicts on the logs of one tree; judges each log once.

    Args:
      folder: the copy of the tree that is judged.
      original: the source of the copy; the kept verdicts name its logs.
      kept: the verdicts in a file.
    """

    def __init__(self, folder: Path, original: Path, kept: Kept):
        self._folder, self._original, self._kept = folder, original, kept
        self._known: dict[tuple[str, str], Stock] = {}

    def verdict(self, path: str, ruleset: str) -> Stock:
        """Returns the verdict on one log of the copy."""
        if (path, ruleset) not in self._known:
            original = str(self._original / os.path.relpath(path, self._folder))
            # The kept verdicts on v0.6 minigo use rules of its own, which the package checker does not use.
            known = self._kept.get(original) if ruleset != "0.6.0" else None
            if known is None:
                verdict, messages = _judge_log(path, ruleset)
                known = Stock(verdict, " ".join(messages[0].split())[:80] if messages else "")
            self._known[path, ruleset] = known
        return self._known[path, ruleset]


@functools.cache
def _fast_checker():
    """Loads the stock checker into this process; from then on its other tools ask `_LOGS` for each log's verdict."""
    from mlperf_logging.compliance_checker import mlp_compliance
    from mlperf_logging.rcp_checker import rcp_checker

    from lab.bench.harness import stock_checker

    stock_checker.make_fast()
    rcp_checker.re = stock_checker.Lines(re)

    def remembered(path: str, config: str, checker: object) -> tuple[bool, None, None, None]:
        said = _LOGS[-1].verdict(str(path), config.partition("/")[0].removeprefix("training_"))
        if said.verdict == "crash":
            raise _StockError(said.message.partition("(")[0])
        return said.verdict == "pass", None, None, None

    mlp_compliance.main = remembered
    return stock_checker.verdict


_LOGS: list[_Logs] = []  # of the tree being compared


class _StockError(Exception):
    """Replaces the exception with which the stock checker ended on a log; its type has the same name."""


def _judge_log(path: str, ruleset: str) -> tuple[str, list[str]]:
    return _fast_checker()(path, ruleset, 60)


def _name_of(error: Exception) -> str:
    return str(error) if isinstance(error, _StockError) else type(error).__name__


def with_stock_verdicts(paths: Sequence[str], ruleset: str | None, division: str | None) -> list[LogResult]:
    """Returns log results that have the stock checker's verdicts."""
    results = []
    for path in paths:
        run, passes = read_run(path, ruleset), _LOGS[-1].verdict(str(path), ruleset).verdict == "pass"
        failed = [] if passes else [finding("not-checked", ERROR, path, "", "", what="", fix="")]
        failed = [one._replace(rule="stock") for one in failed]
        said = (run.header.get(f"submission_{name}") for name in ("benchmark", "division", "platform"))
        results.append(LogResult(path, ruleset, failed, *said, None, False, run.minutes, passes))
    return results


class _Kinds(logging.Handler):
    """Collects the kinds of the errors that the stock tools log."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.kinds: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        said = record.getMessage()
        self.kinds |= {kind for words, kind in _STOCK_KINDS.items() if words in said}


@contextlib.contextmanager
def _listening() -> Iterator[_Kinds]:
    handler, top = _Kinds(), logging.getLogger()
    before = top.handlers
    top.handlers = [handler]
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield handler
    finally:
        top.handlers = before


def stock_package(org: Path, ruleset: str, flags: frozenset[str]) -> list[str]:
    """Returns the kinds of errors for which the stock tools stop a tree; ["crash: TYPE"] if a tool raises."""
    from mlperf_logging.package_checker import package_checker
    from mlperf_logging.repo_checker import repo_checker

    options = [tree_params.RCP_BYPASS, tree_params.BERT_SAMPLES, tree_params.SEED_BYPASS]
    with _listening() as heard:
        try:
            package_checker.check_training_package(
                str(org), "training", ruleset, True, False, *(name in flags for name in options), ""
            )
            if rounds.number(ruleset) >= (2, 0):
                repo_checker.run_checks(str(org))
        except Exception as error:
            return [f"crash: {_name_of(error)}"]
    return sorted(heard.kinds)


def stock_convergence(folder: Path, ruleset: str, flags: frozenset[str]) -> str:
    """Returns rcp_checker's PASS, FAIL or NO_REFERENCE, or "crash: TYPE"; writes scaling.json as it does."""
    from mlperf_logging.rcp_checker import rcp_checker

    with _listening():
        try:
            samples = tree_params.BERT_SAMPLES in flags
            passes, said, _ = rcp_checker.check_directory(
                str(folder), "training", ruleset, False, samples, rcp_pass="pruned_rcps", set_scaling=True
            )
        except Exception as error:
            return f"crash: {_name_of(error)}"
    return rcp.PASS if passes else rcp.NO_REFERENCE if "Missing" in said or "Cannot" in said else rcp.FAIL


def stock_score(folder: Path, ruleset: str) -> float | None | str:
    """Returns the summarizer's score of a folder, or "crash: TYPE"."""
    from mlperf_logging.result_summarizer import result_summarizer

    with _listening():
        try:
            return result_summarizer._compute_strong_score_standalone(
                folder.name, folder.parent.name, False, str(folder), "training", ruleset
            )[0]
        except Exception as error:
            return f"crash: {_name_of(error)}"


def _copy(source: str, target: str) -> None:
    """Links code, which no tool changes, and copies the rest."""
    if "/benchmarks/" in source:
        with contextlib.suppress(OSError):  # a different file system
            os.link(source, target)
            return
    shutil.copy2(source, target)


def compare(org: Path, ruleset: str, logs: str, kept: Kept) -> dict:
    """Judges one submitter's tree on both sides; returns the verdicts and the differences."""
    with tempfile.TemporaryDirectory() as aside:
        copy = Path(aside) / org.name
        shutil.copytree(org, copy, symlinks=True, copy_function=_copy)
        _LOGS[:] = [_Logs(copy, org, kept)]
        checker = with_stock_verdicts if logs == "stock" else check_logs
        outcome = judge_tree(copy, ruleset, None, checker)
        rows = summary.systems(outcome)
        ours = sorted(
            {_OUR_KINDS.get(one.rule, "other") for one in outcome.findings if one.severity == ERROR}
        )
        folders = [result for row in rows for result in row.results.values()]
        differences: list[list[str]] = []
        counts = Counter(folders=len(folders))
        for result in folders:
            flags = tree_params.flags(copy, result.folder.path)
            _compare_folder(result, ruleset, flags, counts, differences)
        # Last, because it rewrites scaling.json.
        theirs = stock_package(copy, ruleset, tree_params.flags(copy, copy / "results" / "-" / "-"))
    return {
        "round": ruleset,
        "submitter": org.name,
        "logs": len(outcome.logs),
        "ours": outcome.verdict.answer,
        "stock": "no-go" if theirs else "go",
        "our_kinds": ours,
        "stock_kinds": theirs,
        **counts,
        "differences": differences,
    }


def _compare_folder(
    result: summary.Result, ruleset: str, flags: frozenset[str], counts: Counter, differences: list
) -> None:
    folder = result.folder
    name = f"{folder.system}/{folder.benchmark}"
    given = (folder.path / "scaling.json").is_file()
    score = stock_score(folder.path, ruleset) if given else None
    if folder.convergence is not None:
        theirs, ours = stock_convergence(folder.path, ruleset, flags), folder.convergence.verdict
        counts["convergence"] += 1
        counts["convergence_same"] += theirs == ours
        if theirs != ours:
            differences.append(["convergence", name, ours, theirs])
    score = score if given else stock_score(folder.path, ruleset)
    mine = result.card.score
    same = (mine is None and score is None) or (
        isinstance(score, float) and mine is not None and abs(score - mine) <= 1e-9 * abs(score)
    )
    counts["scores"] += 1
    counts["scores_same"] += same
    if not same:
        differences.append(["score", name, result.card.why if mine is None else mine, score])


def trees(folder: Path, most_logs: int) -> list[tuple[Path, str]]:
    """Returns (submitter's folder, round) of every submitter with at most `most_logs` logs, fewest logs first."""
    found = []
    for place in sorted(path for path in folder.iterdir() if path.is_dir()):
        match = re.fullmatch(r"(?:training_results_)?v(\d\.\d)", place.name)
        for org in sorted(place.iterdir()) if match else ():
            count = sum(1 for _ in org.glob("results/*/*/result_*"))
            if (org / "results").is_dir() and count <= most_logs:
                found.append((count, org, f"{match[1]}.0"))
    return [(org, ruleset) for _, org, ruleset in sorted(found)]


def main() -> None:
    """Compares the trees and writes the file after each, so that an interrupted run can resume."""
    _fast_checker()
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--most-logs", type=int, default=100)
    parser.add_argument("--logs", choices=("ours", "stock"), default="ours")
    parser.add_argument("--stock", type=Path, help="the verdicts that lab.bench.compliance_published kept")
    parser.add_argument("--rounds", nargs="*", default=None, help='e.g. "5.0.0"; default: all')
    parser.add_argument("-o", "--output", type=Path, default=RESULTS / "compliance_trees.json")
    options = scripts.with_folder(parser, "the folder with training_results_v0.6 ... v5.1")
    done = json.loads(options.output.read_text())["trees"] if options.output.is_file() else []
    kept = {(row["round"], row["submitter"]): row for row in done}
    verdicts = Kept(options.stock, options.folder)
    wanted = [
        (org, ruleset)
        for org, ruleset in trees(options.folder, options.most_logs)
        if (ruleset, org.name) not in kept and (not options.rounds or ruleset in options.rounds)
    ]
    for org, ruleset in tqdm(wanted, file=sys.stderr):
        kept[ruleset, org.name] = compare(org, ruleset, options.logs, verdicts)
        rows = [kept[key] for key in sorted(kept)]
        content = {**head("mlperf-logging"), "logs_judged_by": options.logs, "trees": rows}
        write_atomically(options.output, (json.dumps(content, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
