"""Says which faults in a tree of round v6.0 are noticed, and what is said of published folders.

`python -m lab.bench.altered_trees TREE [--published FOLDER] [-o FILE]`: TREE is the unpacked v6.0 subset, FOLDER holds
training_results_vX.Y/SUBMITTER/ as `lab.bench.compliance_trees` takes it. Each fault is made in a copy and noticed if
the check, `borrow`, or `diff` says what it does not say of the unaltered tree. Of published folders it counts the
advice by kind, and the folders that only rules that no stock tool has refuse.
"""

import argparse
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tqdm import tqdm

from compliance.changes import answers, borrow, difference, hyperparameters
from compliance.findings import ERROR, texts
from compliance.submission.tree import judge_tree
from compliance.verdict import NO_GO
from lab.bench.compliance_trees import trees
from lab.bench.harness import alterations, scripts
from lab.bench.harness.alterations import CONFIG, LORA, SMALL, TREES
from lab.bench.harness.scripts import RESULTS, head, write

# How the rules begin that no stock tool has.
OURS = (
    *(
        "config.",
        "power.",
        "written.",
        "tree.compiled",
        "tree.archive",
        "tree.cache",
        "tree.alike",
        "tree.scaling",
    ),
    *(
        "tree.organisation",
        "log.framework",
        "log.two-runs",
        "seed.whole",
        "eval_accuracy.twice",
        "time.seconds",
    ),
    *("name.hidden", "interval.unpaired", "cache_clear.false"),
)


def said(org: Path) -> set[tuple[str, str, str]]:
    """Returns (rule, file, what was found) of every finding about a submitter's folder and its logs."""
    outcome = judge_tree(org, "6.0.0")
    every = [*outcome.findings, *(one for log in outcome.logs for one in log.findings)]
    return {(one.rule, Path(one.path).name, one.found) for one in every}


def of_trees(tree: Path, work: Path) -> list[dict]:
    """Returns a row for each fault that the check of a tree should notice."""
    whole = work / "base"
    shutil.copytree(tree, whole)
    alterations.base(whole)
    before = {name: said(whole / name) for name in ("AMD", "MiTAC")}
    rows = []
    for one in tqdm(TREES):
        copy = work / "copy"
        shutil.copytree(whole, copy)
        one.change(copy)
        new = {rule for name, old in before.items() for rule, *_ in said(copy / name) - old}
        shutil.rmtree(copy)
        noticed = one.rule in new if one.rule else bool(new)
        rows.append(
            {
                "fault": one.name,
                "expected": [one.rule] * bool(one.rule),
                "noticed": noticed,
                "rules": sorted(new),
            }
        )
    return rows


def of_borrowing(tree: Path, work: Path) -> list[dict]:
    """Returns a row for each fault in a folder that is sent again with borrowed hyperparameters."""
    rows = []
    for name, folder, reason, change in _BORROWED:
        sides = {side: work / side / folder for side in ("own", "other", "again")}
        for path in sides.values():
            shutil.rmtree(path, ignore_errors=True)
            shutil.copytree(tree / folder, path)
        _set(sides["other"], "submission_org", '"Other"')
        _set(sides["other"], "opt_base_learning_rate", "0.0005")
        _set(sides["again"], "opt_base_learning_rate", "0.0005")
        change(sides)
        read = [hyperparameters.read(sides[side], "6.0.0") for side in ("own", "other", "again")]
        refused = borrow.compare(*read).refused
        rows.append({"fault": name, "noticed": any(reason in one for one in refused), "said": list(refused)})
    return rows


def _set(folder: Path, key: str, value: str) -> None:
    alterations.replace(folder.name, rf'("key": "{key}", "value": )[^,]+', rf"\g<1>{value}")(folder.parent)


def _both(sides: dict[str, Path], key: str, value: str) -> None:
    for side in ("other", "again"):
        _set(sides[side], key, value)


_BORROWED: tuple[tuple[str, str, str, Callable[[dict[str, Path]], None]], ...] = (
    ("a borrowed rate of one's own", LORA, "the group is taken over whole",
     lambda s: _set(s["again"], "opt_base_learning_rate", "0.0004")),
    ("half of the group is borrowed", LORA, "opt_learning_rate_training_steps",
     lambda s: _set(s["other"], "opt_learning_rate_training_steps", "600")),
    ("a clip norm that may not change is borrowed", LORA, "the rules fix 0.3",
     lambda s: _both(s, "opt_gradient_clip_norm", "0.5")),
    ("a rank that may not change is borrowed", LORA, "the rules fix 16", lambda s: _both(s, "lora_rank", "8")),
    ("decay steps that the rules compute are borrowed", SMALL, "the rules fix",
     lambda s: _both(s, "opt_learning_rate_decay_steps", "1000")),
    ("another precision with the borrowed rate", LORA, "software and system stay",
     lambda s: _set(s["again"], "lowest_numerical_precision_linear", '"fp8"')),
    ("borrowed from oneself", LORA, "both are of AMD", lambda s: _set(s["other"], "submission_org", '"AMD"')),
    ("borrowed from another benchmark", LORA, "one benchmark only",
     lambda s: _set(s["other"], "submission_benchmark", '"llama31_8b"')),
    ("a benchmark with fixed hyperparameters", SMALL, "allow no borrowing",
     lambda s: [_set(path, "submission_benchmark", '"llama31_405b"') for path in s.values()]),
)  # fmt: skip


def of_differences(tree: Path, work: Path) -> list[dict]:
    """Returns a row for each change that may not be sent again."""
    whole = work / "submitted"
    shutil.copytree(tree, whole)
    alterations.base(whole)
    rows = []
    for name, answer, place, change in _SENT:
        copy = work / "sent"
        shutil.copytree(whole, copy)
        change(copy)
        found, _ = difference.compare(whole, copy)
        given = [one for group in found.values() for one in group if one.place == place]
        shutil.rmtree(copy)
        noticed = any(one.answer == answer for one in given)
        rows.append(
            {"fault": name, "noticed": noticed, "said": [f"{one.name}: {one.answer}" for one in given]}
        )
    return rows


def _faster(root: Path) -> None:
    alterations.replace(LORA, r'("time_ms": \d+)\d', r"\g<1>0", slice(2, 3))(root)


_SENT: tuple[tuple[str, str, str, Callable[[Path], object]], ...] = (
    ("new runs with the same settings", answers.MAY_NOT, "runs", _faster),
    ("a result that was not submitted", answers.MAY_NOT, "folder",
     lambda root: shutil.copytree(root / SMALL, root / "MiTAC/results/MI325X_2node/llama31_8b")),
    ("a rate of one's own after the deadline", answers.ASK, "settings",
     alterations.replace(LORA, r'(opt_base_learning_rate", "value": )0.0006', r"\g<1>0.0005")),
    ("a rank that the rules forbid", answers.MAY_NOT, "settings",
     alterations.replace(LORA, r'(lora_rank", "value": )16', r"\g<1>8")),
    ("another accelerator in the description", answers.ASK, "description",
     alterations.described("accelerator_model_name", "Other")),
    ("other code", answers.MAY, "code", alterations.written(CONFIG, "export LR=1\n")),
)  # fmt: skip


def of_published(folder: Path, most: int) -> dict:
    """Returns counts of published folders, of advice by kind, and of folders that only our own rules refuse."""
    counts, kinds, refused, folders = Counter(), Counter(), [], 0
    for org, ruleset in tqdm(trees(folder, most)):
        outcome = judge_tree(org, ruleset)
        folders += sum(len(one.folders) for one in outcome.submissions)
        counts[outcome.verdict.answer] += 1
        every = [*outcome.findings, *(one for log in outcome.logs for one in log.findings)]
        kinds.update(one.rule for one in every if one.rule.startswith(OURS))
        errors = (
            {one.rule for one in every if one.severity == ERROR} if outcome.verdict.answer == NO_GO else ()
        )
        if errors and all(rule.startswith(OURS) for rule in errors):
            refused.append([f"{ruleset} {org.name}", sorted(errors)])
    return {
        "submitters": sum(counts.values()),
        "folders": folders,
        "verdicts": counts,
        "alarms": dict(kinds.most_common()),
        "refused_by_new_rules_alone": refused,
    }


def main() -> None:
    """Makes the faults and writes the file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--published", type=Path, help="the folder with training_results_v4.0 ... v5.1")
    parser.add_argument("--most-logs", type=int, default=400, help="of a submitter (default: %(default)s)")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS / "altered_trees.json")
    options = scripts.with_folder(parser, "the unpacked v6.0 subset")
    with tempfile.TemporaryDirectory() as work:
        rows = of_trees(options.folder, Path(work)) + of_borrowing(options.folder, Path(work))
        rows += of_differences(options.folder, Path(work))
    noticed = sum(row["noticed"] for row in rows)
    missed = [row["fault"] for row in rows if not row["noticed"]]
    result = {
        **head("mlperf-logging"),
        "faults": len(rows),
        "noticed": noticed,
        "missed": missed,
        "rows": rows,
    }
    if options.published:
        result["published"] = of_published(options.published, options.most_logs)
    result["rules"] = sorted(rule for rule in texts()["rules"] if rule.startswith(OURS))
    write(result, options.output)
    print(f"{noticed} of {len(rows)} faults noticed; missed: {', '.join(missed) or 'none'}")


if __name__ == "__main__":
    main()
