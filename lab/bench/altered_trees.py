"""Reports which faults in a v6.0 tree we and the stock tools notice, and the findings in published trees.

`python -m lab.bench.altered_trees TREE [--published FOLDER] [-o FILE]`: TREE is the unpacked v6.0 subset, FOLDER holds
published rounds as `lab.bench.compliance_published` takes them. Each fault is made in a copy. We notice it if `check`
or `borrow` says what it does not say of the unaltered tree; the stock package and repository checkers, if they
log an error of another kind, or crash. --published counts each rule's findings in published folders, and the submitters
that only rules without a stock tool refuse.
"""

import argparse
import shutil
import tempfile
from collections import Counter, defaultdict
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from tqdm import tqdm

from compliance.api import Outcome
from compliance.changes import borrow, hyperparameters
from compliance.findings import ADVICE, ERROR, texts
from compliance.log.check_log import LogResult, check_logs
from compliance.report import index
from compliance.submission import rounds
from compliance.submission.tree import judge_tree
from compliance.verdict import NO_GO
from lab.bench.compliance_published import submitters
from lab.bench.harness import alterations, scripts, stock_checker
from lab.bench.harness.alterations import LORA, SMALL, TREES, value
from lab.bench.harness.scripts import RESULTS, head, write

_ROUND = "6.0.0"
# How the rules begin that no stock tool has.
OURS = (
    "config.", "power.", "written.", "time.", "tree.compiled", "tree.archive", "tree.cache", "tree.alike",
    "tree.scaling", "tree.organisation", "tree.at-once", "tree.batch", "tree.short", "tree.gap", "tree.samples",
    "tree.status", "tree.placeholder", "tree.value", "tree.fast", "log.framework", "log.two-runs", "seed.whole",
    "eval_accuracy.twice", "name.hidden", "interval.unpaired", "cache_clear.false", "system.bom", "system.twice",
)  # fmt: skip


def _findings(outcome: Outcome) -> list:
    return [*outcome.findings, *(one for log in outcome.logs for one in log.findings)]


class _Logs:
    """Judges each content of a log once: most logs of an altered tree are as they were."""

    def __init__(self) -> None:
        self._known: dict[str, LogResult] = {}

    def __call__(self, paths: Sequence[str], ruleset: str | None, division: str | None) -> list[LogResult]:
        return [self._judged(path, ruleset, division) for path in paths]

    def _judged(self, path: str, ruleset: str | None, division: str | None) -> LogResult:
        digest = sha256(Path(path).read_bytes()).hexdigest()
        if digest not in self._known:
            (self._known[digest],) = check_logs([path], ruleset, division)
        known = self._known[digest]
        return known._replace(path=path, findings=[one._replace(path=path) for one in known.findings])


def of_trees(tree: Path, work: Path, chosen: Sequence[alterations.Alteration] = TREES) -> list[dict]:
    """Returns a row for each fault that the check of a tree should notice."""
    whole, judged, stock = work / "base", _Logs(), stock_checker.Verdicts()
    shutil.copytree(tree, whole)
    alterations.base(whole)
    stock_checker.ask(stock.verdict)

    def looked_at(org: Path) -> tuple[set[tuple[str, str, str]], set[str]]:
        outcome = judge_tree(org, _ROUND, None, judged)
        said = {(one.rule, Path(one.path).name, one.found) for one in _findings(outcome)}
        return said | {("verdict", "", outcome.verdict.answer)}, set(
            stock_checker.package(org, _ROUND, frozenset())
        )

    before = {name: looked_at(whole / name) for name in sorted({one.org for one in chosen})}
    rows = []
    for one in tqdm(chosen):
        copy = work / "copy"
        shutil.copytree(whole / one.org, copy / one.org)
        one.change(copy)
        ours, theirs = looked_at(copy / one.org)
        shutil.rmtree(copy)
        new = sorted({rule for rule, *_ in ours - before[one.org][0]})
        noticed = one.rule in new if one.rule else bool(new)
        seen = sorted(theirs - before[one.org][1])
        rows.append(
            _row(one.name, noticed, new, bool(seen), expected=[one.rule] * bool(one.rule), stock_kinds=seen)
        )
    return rows


def _row(fault: str, noticed: bool, rules: Sequence[str], stock: bool = False, **more: object) -> dict:
    return {"fault": fault, "noticed": noticed, "stock": stock, "rules": [*rules], **more}


def of_borrowing(tree: Path, work: Path) -> list[dict]:
    """Returns a row for each fault in a folder that is sent again with borrowed hyperparameters."""
    rows = []
    for name, folder, reason, changes in _BORROWED:
        changes = {"other": ["submission_org", '"Other"'], **changes}
        sides = {side: work / side / folder for side in ("own", "other", "again")}
        for side, path in sides.items():
            shutil.rmtree(path, ignore_errors=True)
            shutil.copytree(tree / folder, path)
            said = ["opt_base_learning_rate", "0.0005"] * (side != "own") + changes.get(side, [])
            for key, text in zip(said[::2], said[1::2]):
                value(key, text, folder=folder)(work / side)
        found = borrow.compare(*(hyperparameters.read(path, _ROUND) for path in sides.values())).refused
        rows.append(_row(name, any(reason in one for one in found), [], said=[*found]))
    return rows


_CLIP, _RANK = ["opt_gradient_clip_norm", "0.5"], ["lora_rank", "8"]
_DECAY, _RATE = ["opt_learning_rate_decay_steps", "1000"], ["opt_base_learning_rate", "0.0004"]
_OTHER, _FIXED = ["submission_org", '"Other"'], ["submission_benchmark", '"llama31_405b"']
# (fault, folder, reason of the refusal, {side: keys and values})
_BORROWED: tuple[tuple[str, str, str, dict[str, list[str]]], ...] = (
    ("a borrowed rate of one's own", LORA, "the group is taken over whole", {"again": _RATE}),
    ("half of the group is borrowed", LORA, "opt_learning_rate_training_steps",
     {"other": [*_OTHER, "opt_learning_rate_training_steps", "600"]}),
    ("a clip norm that may not change is borrowed", LORA, "the rules fix 0.3",
     {"other": [*_OTHER, *_CLIP], "again": _CLIP}),
    ("a rank that may not change is borrowed", LORA, "the rules fix 16", {"other": [*_OTHER, *_RANK], "again": _RANK}),
    ("decay steps that the rules compute are borrowed", SMALL, "the rules fix",
     {"other": [*_OTHER, *_DECAY], "again": _DECAY}),
    ("another precision with the borrowed rate", LORA, "software and system stay",
     {"again": ["lowest_numerical_precision_linear", '"fp8"']}),
    ("borrowed from oneself", LORA, "both are of AMD", {"other": []}),
    ("borrowed from another benchmark", LORA, "one benchmark only",
     {"other": [*_OTHER, "submission_benchmark", '"llama31_8b"']}),
    ("a benchmark with fixed hyperparameters", SMALL, "allow no borrowing",
     {"own": _FIXED, "other": [*_OTHER, *_FIXED], "again": _FIXED}),
)  # fmt: skip


def of_published(folder: Path) -> dict:
    """Counts published folders, those with each rule's advice by round, and whom our own rules alone refuse."""
    verdicts, folders, logs = Counter(), Counter(), Counter()
    alarms: dict[str, Counter] = defaultdict(Counter)
    refused = []
    for org, ruleset in tqdm(list(submitters(folder))):
        outcome = judge_tree(org, ruleset)
        every = _findings(outcome)
        places = [one.path for submission in outcome.submissions for one in submission.folders]
        verdicts[outcome.verdict.answer] += 1
        folders[ruleset] += len(places)
        logs[ruleset] += len(outcome.logs)
        by_folder, of_tree = index.by_folder(outcome._replace(findings=every), places)
        for findings in by_folder:
            for rule in {one.rule for one in (*findings, *of_tree) if one.severity == ADVICE}:
                alarms[rule][ruleset] += 1
        refuses = outcome.verdict.answer == NO_GO
        errors = {one.rule for one in outcome.findings if refuses and one.severity == ERROR}
        if errors and all(rule.startswith(OURS) for rule in errors):
            refused.append([f"{ruleset} {org.name}", sorted(errors)])
    return {
        "submitters": sum(verdicts.values()),
        "folders": sum(folders.values()),
        "logs": sum(logs.values()),
        "rounds": {name: folders[name] for name in sorted(folders, key=rounds.number)},
        "verdicts": verdicts,
        "alarms": {rule: dict(sorted(alarms[rule].items())) for rule in sorted(alarms)},
        "refused_by_new_rules_alone": refused,
    }


def main() -> None:
    """Makes the faults and writes the file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--published", type=Path, help="the folder with training_results_v0.6 ... v5.1")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS / "altered_trees.json")
    options = scripts.with_folder(parser, "the unpacked v6.0 subset")
    with tempfile.TemporaryDirectory() as work:
        rows = [row for make in (of_trees, of_borrowing) for row in make(options.folder, Path(work))]
    missed = [row["fault"] for row in rows if not row["noticed"]]
    counts = {
        "faults": len(rows),
        "noticed": len(rows) - len(missed),
        "by_stock": sum(row["stock"] for row in rows),
    }
    result = {**head("mlperf-logging"), **counts, "missed": missed, "rows": rows}
    if options.published:
        result["published"] = of_published(options.published)
    result["rules"] = sorted(rule for rule in texts()["rules"] if rule.startswith(OURS))
    write(result, options.output)
    print(f"{counts}; missed: {', '.join(missed) or 'none'}")


if __name__ == "__main__":
    main()
