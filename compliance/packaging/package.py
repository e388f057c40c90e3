"""Implements `timetotrain package`: builds the submission tree that the rules require.

<org>/systems/<system>.json
<org>/results/<system>/<benchmark>/result_<i>.txt
<org>/benchmarks/<benchmark>/implementations/<implementation>/      the code of the commit that ran
<org>/benchmarks/<benchmark>/<system>/   README.md, three scripts, <system>_<implementation>.json

Runs of this repository have all of this in their run.json. For logs of another framework, --description and --code
give the machine and the code (other_logs.py).
"""

import argparse
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from common.errors import UserError
from compliance.api import PACKAGING_ERRORS, check
from compliance.findings import ERROR, Finding
from compliance.log import rules
from compliance.packaging import other_logs, own_runs
from compliance.packaging.package_output import SAFE_NAME, Entry, plan, write_package
from compliance.submission.coherence import is_placeholder, same_organization
from compliance.submission.rounds import retirement
from compliance.submission.runs import Run
from compliance.verdict import NOT_CHECKED

SMOKE = "SMOKE"
# Advice that refuses a package even for other submitters' logs: such runs are not results, or not what they seem.
_NEVER = frozenset((
    "smoke_run", "no_mlperf_result", "resumed_from_step", "tree.duplicate", "tree.alike", "tree.seed", "tree.run-count",
))  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add, code = parser.add_argument, "the code that ran; repeatable"
    framework = "name of the implementation; default: the framework, tensorflow for runs of this one"
    add("results", metavar="RESULTS", type=Path, help="folder with <system>/<benchmark>/ and their logs")
    add("--org", required=True, help="the submitting organization, as in the logs")
    add("--system", required=True, help="the system's name, and its folder in RESULTS")
    add("-o", "--output", metavar="DIR", type=Path, help="where to write; must not exist")
    add("--implementation", help=framework)
    add("--source", metavar="DIR", type=Path, help="checkout of the code that ran (default: this one)")
    other = parser.add_argument_group("for logs that no run.json describes").add_argument
    other("--description", metavar="JSON", type=Path, help="the system description, in the round's fields")
    other("--code", metavar="[BENCHMARK=]DIR", action="append", default=[], help=code)
    other("--implementation_json", metavar="JSON", type=Path, help="starting weights, data types, retraining")
    other("--ruleset", **rules.CHOICE, help="the round; default: what the logs say")
    add("--smoke", action="store_true", help="a practice tree with SMOKE in every path")
    add("--list", action="store_true", help="show what would be written, and write nothing")
    add("--force", action="store_true", help="replace an earlier package at DIR")


def run(args: argparse.Namespace) -> int:
    """Returns 0 if the tree was written or listed, 1 if findings refuse it; raises UserError for a wrong option."""
    for name in ("org", "system", "implementation"):
        value = getattr(args, name)
        if value is not None and not SAFE_NAME.fullmatch(value):
            raise UserError(f"--{name} {value!r}: use letters, digits, '.', '_', '+' and '-' only")
    if args.output is None and not args.list:
        raise UserError("-o: name the folder to write, or show the files with --list")
    if args.implementation is None:
        description = args.description
        args.implementation = other_logs.implementation_name(description) if description else "tensorflow"
    entries = _any_submitter(args) if args.description else _this_repository(args)
    if args.list:
        for entry in entries:
            print(f"{entry.size:>12,}  {entry.path}")
        total = sum(entry.size for entry in entries)
        print(f"{len(entries)} files, {total:,} bytes. Nothing was written or checked.")
        return 0
    target, inputs = args.output.resolve(), args.results.resolve()
    if target == inputs or inputs in target.parents or target in inputs.parents:
        reason = "lies in RESULTS or around it, which is only read"
        raise UserError(f"-o {args.output}: {reason}; name another folder")
    top = entries[0].path.split("/", 1)[0]

    def accepted(tree: Path) -> bool:
        return _accept(tree, args.ruleset, own_runs=args.description is None, smoke=args.smoke)

    folder = write_package(args.output, top, entries, args.force, accepted)
    if folder is None:
        return 1
    print(f"Wrote {args.output}: {top}/ with {len(entries)} files, {top}.tar and SHA256SUMS.")
    # ORG/results/SYSTEM/BENCHMARK/LOG; runs of this repository keep the rules of v0.7.
    places = [entry.path.split("/") for entry in entries]
    ruleset = args.ruleset or ("" if args.description else "0.7.0")
    for name in sorted({parts[3] for parts in places if parts[1] == "results" and len(parts) == 5}):
        if line := retirement(name, ruleset):
            print(line)
    return 0


def _this_repository(args: argparse.Namespace) -> list[Entry]:
    if args.code or args.implementation_json or args.ruleset:
        raise UserError("--description: not given; --code, --implementation_json and --ruleset need it")
    benchmarks = own_runs.read_results(args.results, args.system)
    runs = [(run, bool(record.get("smoke_run"))) for part in benchmarks for run, record in part.results]
    _refuse_unfit(runs, args)
    parts = own_runs.parts(benchmarks, args.source, args.smoke)
    return plan(parts, own_runs.description(benchmarks, args.org, args.system), *_names(args))


def _any_submitter(args: argparse.Namespace) -> list[Entry]:
    if args.source:
        raise UserError("--source: is for runs with a run.json; name the code with --code")
    folders = other_logs.read_folders(args.results, args.system, args.ruleset)
    runs = [run for runs in folders.values() for run in runs]
    _refuse_unfit(((run, False) for run in runs), args)
    description = other_logs.description(args.description, args.org, runs[0])
    return plan(other_logs.parts(folders, args.code, args.implementation_json), description, *_names(args))


def _names(args: argparse.Namespace) -> tuple[str, str, str]:
    return f"{SMOKE}-{args.org}" if args.smoke else args.org, args.system, args.implementation


def _refuse_unfit(runs: Iterable[tuple[Run, bool]], args: argparse.Namespace) -> None:
    """Refuses smoke runs (by their log, or by their record) and logs of another organization."""
    for run, smoke in () if args.smoke else runs:
        if run.smoke or smoke:
            fix = "practise with --smoke, or package full-size runs"
            raise UserError(f"{run.path}: is a smoke run, which is not a result; {fix}")
        logged = run.header.get("submission_org")
        if is_placeholder(logged):
            continue  # the package checker takes it, and nobody may edit a log: `check` says it as advice
        if not isinstance(logged, str) or not same_organization(logged, args.org):
            fix = "give --org as the folder of your organization is called (Inventec for 'Inventec Corporation')"
            raise UserError(f"{run.path}: its submission_org is {str(logged)[:60]!r}, not {args.org}; {fix}")


def _accept(tree: Path, ruleset: str | None, own_runs: bool, smoke: bool) -> bool:
    """Checks the finished tree as a submission and prints what it finds.

    Args:
      tree: the submitter's folder.
      ruleset: the round; None: find it from the tree and the logs.
      own_runs: True for runs of this repository, which must have no finding. For other logs advice is only printed.
      smoke: True for a practice tree, which is accepted whatever the findings.
    """
    outcome = check([tree], ruleset, packaging=own_runs)
    dropped = outcome.dropped
    findings = [finding for finding in outcome.findings if not _allowed(finding, dropped)]
    unchecked = outcome.verdict.answer == NOT_CHECKED
    bad = [finding for finding in findings if own_runs or finding.severity == ERROR or finding.rule in _NEVER]
    accepted = smoke or not (bad or unchecked)
    stream = sys.stdout if accepted else sys.stderr
    for finding in findings:
        place = os.path.relpath(finding.path, tree.parent)
        line = f":{finding.line}" if finding.line else ""
        print(f"{place}{line}: {finding.message} {finding.fix[:1].upper()}{finding.fix[1:]}.", file=stream)
    for path in sorted(dropped):
        place = os.path.relpath(path, tree.parent)
        print(f"{place}: does not count; the score drops it as the slowest run.", file=stream)
    if bad and smoke:
        print(f"A submission would be refused for {len(bad)} findings; this is a practice tree.")
    elif not accepted:
        why = f"{len(bad)} findings" if bad else outcome.verdict.line
        print(f"Refused: {why}, nothing written.", file=sys.stderr)
    return accepted


def _allowed(finding: Finding, dropped: frozenset[str]) -> bool:
    """Whether a finding only reports the failure of a run that may fail (`ResultFolder.dropped`)."""
    if finding.path in dropped:
        return finding.rule not in PACKAGING_ERRORS and finding.rule not in ("not-checked", "tree.stock")
    return finding.rule == "tree.score" and finding.path in {os.path.dirname(path) for path in dropped}
