"""Implements `timetotrain settings TREE`: the settings of each folder's logs beside the configuration they name."""

import argparse
import json
from collections import Counter
from functools import partial
from pathlib import Path

from compliance.code import advice, agreement
from compliance.code.agreement import DIFFERENT, Agreement
from compliance.report.output import value
from compliance.submission.runs import read_or_empty
from compliance.submission.scores import result_folders
from compliance.submission.tree_files import places_of, plain_files
from compliance.submission.verdict import no_folders


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("tree", metavar="TREE", type=Path, help="a submitter's folder, or a folder of several")
    add("--format", choices=("text", "json"), default="text", help="default: %(default)s")


def run(options: argparse.Namespace) -> int:
    """Prints the settings; returns 1 if a configuration is missing, cannot be read, or has other values; else 0.

    Raises UserError: the tree has no results.
    """
    agreements = compare(options.tree)
    if options.format == "json":
        print(json.dumps([_plain(*one) for one in agreements], indent=2))
    else:
        print(_text(agreements))
    named = (one for _, _, one in agreements if one is not None)
    return int(any(one.file is None or agreement.wrong(one) for one in named))


def compare(root: Path) -> list[tuple[Path, list[Path], Agreement | None]]:
    """Returns (folder of runs, its logs, the agreement) of each folder; None for logs that name no configuration."""
    orgs: dict[Path, list[Path]] = {}
    for (org, *_), folder in places_of(result_folders(root)).items():
        orgs.setdefault(org, []).append(folder)
    if not orgs:
        raise no_folders(root)
    agreements: list[tuple[Path, list[Path], Agreement | None]] = []
    for org, folders in orgs.items():
        logs = {folder: plain_files(folder, "result_*.txt") for folder in folders}
        header = partial(read_or_empty, ruleset=None, until="run_start")
        agreements += agreement.of_tree(org, {folder: [*map(header, logs[folder])] for folder in folders})
        named = {folder for folder, _, _ in agreements}
        agreements += [(one, logs[one], None) for one in folders if one not in named]
    return sorted(agreements, key=lambda one: str(one[0]))


def _text(agreements: list[tuple[Path, list[Path], Agreement | None]]) -> str:
    lines = []
    for folder, logs, one in agreements:
        says = "the logs name no configuration"
        if one is not None:
            problem = "not in the code" if one.file is None else one.problem
            says = f"{one.named}: {problem}" if problem else f"{one.named} ({one.kind})"
        lines.append(f"{folder.parent.name}/{folder.name}, {len(logs)} logs: {says}")
        for setting in one.settings if one else ():
            file = ", ".join(setting.values[:4]) or "-"
            lines.append(f"  {setting.answer:10}{setting.name}  log {value(setting.logged)}  file {file}")
        lines.append(f"  framework's output: {_of(logs, advice.has_framework_log)}")
        lines.append(f"  environment: {_of(logs, advice.has_environment)}")
    answers = Counter(setting.answer for _, _, one in agreements if one for setting in one.settings)
    words = agreement.SAME, DIFFERENT, agreement.NOT_FOUND
    counted = ", ".join(f"{answers[answer]} {answer}" for answer in words)
    named = [one for _, _, one in agreements if one is not None]
    said = f"{len(named)} configurations named, {sum(one.file is None for one in named)} missing"
    return "\n".join([*lines, f"{said}; settings: {counted}"])


def _of(logs: list[Path], has) -> str:
    count = sum(has(log) for log in logs)
    return f"in {count} of {len(logs)} logs" if count else "in no log"


def _plain(folder: Path, logs: list[Path], one: Agreement | None) -> dict:
    content = {
        "folder": str(folder), "logs": len(logs), "framework_logs": sum(map(advice.has_framework_log, logs)),
        "environments": sum(map(advice.has_environment, logs)), "named": one.named if one else None,
        "file": str(one.file) if one and one.file else None, "problem": one.problem if one else "",
    }  # fmt: skip
    settings = [
        {"name": s.name, "log": s.logged, "file": list(s.values), "answer": s.answer}
        for s in (one.settings if one else ())
    ]
    return content | {"settings": settings}
