"""Compares our judgment of published logs and trees with the stock tools'.

`python -m lab.bench.compliance_published FOLDER [--trees] [--most_logs N] [-o FILE]`: FOLDER holds checkouts of the
public repositories mlcommons/training_results_v0.6 ... v5.1 (or folders vX.Y of submitters). Without --trees, both
checkers judge each `result_*.txt` below `ORG/results/` with the ruleset of its round. With it, the stock
package_checker, rcp_checker, repo_checker and result_summarizer judge each submitter's folder, a copy because they
write scaling.json. The stock checker takes most of the time. The file has counts and every difference, by class.
"""

import contextlib
import json
import os
import re
import shutil
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from compliance.findings import ERROR
from compliance.log.check_log import check_log
from compliance.submission import summary, tree_params
from compliance.submission.tree import judge_tree
from lab.bench.harness import scripts, stock_checker
from lab.bench.harness.scripts import RESULTS, head, write

# Our rules -> the kinds of the stock tools' errors.
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


def submitters(folder: Path) -> Iterator[tuple[Path, str]]:
    """Yields (submitter's folder, ruleset) of every round below `folder`."""
    for place in sorted(folder.iterdir()):
        if match := re.fullmatch(r"(?:training_results_)?v(\d+\.\d+)", place.name):
            yield from (
                (org, f"{match[1]}.0") for org in sorted(place.iterdir()) if (org / "results").is_dir()
            )


# ---------------------------------------------------------------------------------------------------- logs


class Pair(NamedTuple):
    """Both verdicts on one log: `theirs` is pass, fail or crash; `why` says what caused a difference."""

    path: str
    round: str
    passes: bool
    theirs: str
    why: str


def judge(task: tuple[str, str]) -> Pair:
    """Returns both verdicts on a log."""
    path, ruleset = task
    ours = check_log(path, ruleset)
    theirs = stock_checker.judged(path, ruleset, stock_checker.config(path, ruleset))
    why = ""
    if ours.passes != (theirs.verdict == "pass"):
        errors = sorted({finding.rule for finding in ours.findings if finding.severity == ERROR})
        message = f": {theirs.message}" if theirs.message else ""
        why = f"ours {', '.join(errors) or 'passes'}; stock {theirs.verdict}{message}"
    return Pair(path, ruleset.removesuffix(".0"), ours.passes, theirs.verdict, why)


def of_logs(pairs: list[Pair], folder: Path) -> dict:
    """Returns the counts by round and the differences by class."""
    rounds: dict[str, Counter] = defaultdict(Counter)
    classes: dict[str, dict] = {}
    for pair in pairs:
        verdicts = ["logs", f"stock {pair.theirs}", "ours pass" if pair.passes else "ours fail"]
        rounds[pair.round].update([*verdicts, *(["different"] if pair.why else [])])
        if pair.why:
            example = os.path.relpath(pair.path, folder)
            one = classes.setdefault(pair.why, {"logs": 0, "rounds": [], "example": example})
            one["logs"] += 1
            one["rounds"] = sorted({*one["rounds"], pair.round})
    return {"rounds": {name: dict(counts) for name, counts in sorted(rounds.items())}, "classes": classes}


def _compare_logs(options) -> None:
    tasks = [
        (str(path), ruleset)
        for org, ruleset in submitters(options.folder)
        for path in sorted((org / "results").rglob("result_*.txt"))
        if path.is_file()
    ]
    with ProcessPoolExecutor(options.processes, initializer=stock_checker.make_fast) as pool:
        done = pool.map(judge, tasks, chunksize=16)
        pairs = list(tqdm(done, total=len(tasks), unit=" logs", mininterval=10))
    result = of_logs(pairs, options.folder)
    for name, counts in result["rounds"].items():
        print(f"v{name}: " + ", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    for why, one in result["classes"].items():
        print(f"{one['logs']} logs of {', '.join(one['rounds'])}: {why} ({one['example']})")
    about = {**head(), "mlperf_logging": version("mlperf-logging")}
    write({**about, **result}, options.output or RESULTS / "compliance_published.json")


# --------------------------------------------------------------------------------------------------- trees


def _copy(source: str, target: str) -> None:
    """Links code, which no tool changes, and copies the rest."""
    if "/benchmarks/" in source:
        with contextlib.suppress(OSError):  # a different file system
            os.link(source, target)
            return
    shutil.copy2(source, target)


def compare(org: Path, ruleset: str) -> dict:
    """Judges one submitter's tree on both sides; returns the verdicts and the differences."""
    with tempfile.TemporaryDirectory() as aside:
        copy = Path(aside) / org.name
        shutil.copytree(org, copy, symlinks=True, copy_function=_copy)
        outcome = judge_tree(copy, ruleset)
        rules = {one.rule for one in outcome.findings if one.severity == ERROR}
        folders = [result for row in summary.systems(outcome) for result in row.results.values()]
        differences: list[list[str]] = []
        counts = Counter(folders=len(folders))
        for result in folders:
            flags = tree_params.flags(copy, result.folder.path)
            _compare_folder(result, ruleset, flags, counts, differences)
        # Last, because it rewrites scaling.json.
        theirs = stock_checker.package(copy, ruleset, tree_params.flags(copy, copy / "results" / "-" / "-"))
    return {
        "round": ruleset,
        "submitter": org.name,
        "logs": len(outcome.logs),
        "ours": outcome.verdict.answer,
        "stock": "no-go" if theirs else "go",
        "our_kinds": sorted({_OUR_KINDS.get(rule, "other") for rule in rules}),
        "stock_kinds": theirs,
        **counts,
        "differences": differences,
    }


def _compare_folder(
    result: summary.Result, ruleset: str, flags: frozenset[str], counts: Counter, differences: list
) -> None:
    folder, our_score = result.folder, result.card.score
    name = f"{folder.system}/{folder.benchmark}"
    has_scaling = (folder.path / "scaling.json").is_file()
    score = stock_checker.score(folder.path, ruleset) if has_scaling else None
    if folder.convergence is not None:
        theirs, ours = stock_checker.convergence(folder.path, ruleset, flags), folder.convergence.verdict
        counts.update(convergence=1, convergence_same=int(theirs == ours))
        if theirs != ours:
            differences.append(["convergence", name, ours, theirs])
    score = score if has_scaling else stock_checker.score(folder.path, ruleset)
    same = (our_score is None and score is None) or (
        isinstance(score, float) and our_score is not None and abs(score - our_score) <= 1e-9 * abs(score)
    )
    counts.update(scores=1, scores_same=int(same))
    if not same:
        differences.append(["score", name, result.card.why if our_score is None else our_score, score])


def _compare_trees(options) -> None:
    """Writes the file after each tree, so that an interrupted run can resume."""
    output = options.output or RESULTS / "compliance_trees.json"
    done = json.loads(output.read_text())["trees"] if output.is_file() else []
    rows = {(row["round"], row["submitter"]): row for row in done}
    stock_checker.judge_once()
    counted = [
        (sum(1 for _ in org.glob("results/*/*/result_*")), org, name)
        for org, name in submitters(options.folder)
    ]
    for count, org, ruleset in tqdm(sorted(counted), file=sys.stderr):
        if count <= options.most_logs and (ruleset, org.name) not in rows:
            rows[ruleset, org.name] = compare(org, ruleset)
            write({**head("mlperf-logging"), "trees": [rows[key] for key in sorted(rows)]}, output)


def main() -> None:
    """Judges the logs or the trees, prints the counts and writes the result file."""
    parser = scripts.parser(__doc__)
    parser.add_argument("--trees", action="store_true", help="compare the judgment of whole trees")
    parser.add_argument("--most_logs", type=int, default=100, help="of a tree (default: %(default)s)")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("-o", "--output", type=Path)
    options = scripts.with_folder(parser, "the folder with training_results_v0.6 ... v5.1")
    (_compare_trees if options.trees else _compare_logs)(options)


if __name__ == "__main__":
    main()
