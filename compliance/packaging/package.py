"""Implements `timetotrain package`: builds the submission tree that the rules require.

<org>/systems/<system>.json
<org>/results/<system>/<benchmark>/result_<i>.txt
<org>/benchmarks/<benchmark>/implementations/<implementation>/      the code of the commit that ran
<org>/benchmarks/<benchmark>/<system>/   README.md, three scripts, <system>_<implementation>.json

Runs of this repository have all of this in their run.json. For logs of another framework, --description and --code
give the machine and the code (submitted.py).
"""

import argparse
import json
import os
import sys
from pathlib import Path

from common.errors import UserError
from common.files import INSTALLED
from compliance.api import PACKAGING_ERRORS, check
from compliance.findings import ERROR, Finding
from compliance.log.rules import RULESETS
from compliance.packaging import submitted
from compliance.packaging.package_inputs import (
    IMPLEMENTATION,
    SAFE_NAME,
    SCRIPTS,
    Benchmark,
    code_files,
    has_commit,
    head,
    read_results,
)
from compliance.packaging.package_output import Entry, write_package
from compliance.submission.rounds import retirement

SMOKE = "SMOKE"
# Advice that refuses a package even for other submitters' logs: such runs are not results, or not what they seem.
_NEVER = frozenset(
    ("smoke_run", "no_mlperf_result", "resumed_from_step")
    + ("tree.duplicate", "tree.alike", "tree.seed", "tree.run-count")
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "results", metavar="RESULTS", type=Path, help="folder with <system>/<benchmark>/ and their logs"
    )
    parser.add_argument("--org", required=True, help="the submitting organisation, as in the logs")
    parser.add_argument("--system", required=True, help="the system's name, and its folder in RESULTS")
    parser.add_argument("-o", "--output", metavar="DIR", type=Path, help="where to write; must not exist")
    parser.add_argument(
        "--implementation",
        help="name of the implementation; default: the framework, tensorflow for runs of this one",
    )
    parser.add_argument(
        "--source", metavar="DIR", type=Path, help="checkout of the code that ran (default: this one)"
    )
    others = parser.add_argument_group("for logs that no run.json describes")
    others.add_argument(
        "--description", metavar="JSON", type=Path, help="the system description, in the round's fields"
    )
    others.add_argument(
        "--code", metavar="[BENCHMARK=]DIR", action="append", default=[], help="the code that ran; repeatable"
    )
    others.add_argument(
        "--implementation-json", metavar="JSON", type=Path, help="starting weights, data types, retraining"
    )
    others.add_argument("--ruleset", choices=RULESETS, help="the round; default: what the logs say")
    parser.add_argument("--smoke", action="store_true", help="a practice tree with SMOKE in every path")
    parser.add_argument("--list", action="store_true", help="show what would be written, and write nothing")
    parser.add_argument("--force", action="store_true", help="replace an earlier package at DIR")


def run(args: argparse.Namespace) -> int:
    """Returns 0 if the tree was written (or listed), 1 if findings refuse it and nothing was written."""
    for name in ("org", "system", "implementation"):
        if getattr(args, name) is not None and not SAFE_NAME.fullmatch(getattr(args, name)):
            raise UserError(
                f"--{name} {getattr(args, name)!r}: use letters, digits, '.', '_', '+' and '-' only"
            )
    if args.output is None and not args.list:
        raise UserError("-o: name the folder to write, or show the files with --list")
    if args.implementation is None:
        given = args.description
        args.implementation = submitted.implementation_name(given) if given else "tensorflow"
    entries = _any_submitter(args) if args.description else _this_repository(args)
    if args.list:
        for entry in entries:
            print(f"{entry.size:>12,}  {entry.path}")
        total = sum(entry.size for entry in entries)
        print(f"{len(entries)} files, {total:,} bytes. Nothing was written or checked.")
        return 0
    _keep_apart(args.output, args.results)
    top = entries[0].path.split("/", 1)[0]

    def accepted(tree: Path) -> bool:
        return _accept(tree, args.ruleset, own_runs=args.description is None, smoke=args.smoke)

    written = write_package(args.output, top, entries, args.force, accepted)
    if written is None:
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
        raise UserError("--description: not given; --code, --implementation-json and --ruleset need it")
    benchmarks = read_results(args.results, args.system)
    _refuse_smoke(benchmarks, args)
    source = args.source or _checkout()
    return plan(benchmarks, args.org, args.system, args.implementation, source, args.smoke)


def _any_submitter(args: argparse.Namespace) -> list[Entry]:
    if args.source:
        raise UserError("--source: is for runs with a run.json; name the code with --code")
    folders = submitted.read_folders(args.results, args.system, args.ruleset)
    submitted.refuse_unfit(folders, args.org, args.smoke)
    top = f"{SMOKE}-{args.org}" if args.smoke else args.org
    return submitted.plan(
        folders,
        args.org,
        args.system,
        args.implementation,
        args.description,
        args.code,
        args.implementation_json,
        top,
    )


def plan(
    benchmarks: list[Benchmark], org: str, system: str, implementation: str, source: Path, smoke: bool
) -> list[Entry]:
    """Lists every file of the tree, in order. Raises UserError if the runs' records are incomplete or differ."""
    top = f"{SMOKE}-{org}" if smoke else org
    entries = [Entry(f"{top}/systems/{system}.json", _system_json(benchmarks, org, system))]
    for benchmark in benchmarks:
        place = f"{top}/benchmarks/{benchmark.name}"
        code = code_files(source, _commit(benchmark, source, smoke), benchmark.name)
        for path, (mode, content) in code.items():
            entries.append(Entry(f"{place}/implementations/{implementation}/{path}", content, mode))
        own = f"{place}/{system}"
        described = _implementation_json(benchmark)
        entries.append(Entry(f"{own}/{system}_{implementation}.json", described))
        readme = f"{benchmark.name}/README.md"
        if readme in code:
            entries.append(Entry(f"{own}/README.md", code[readme][1]))
        for script in SCRIPTS:
            if f"{benchmark.name}/{script}" in code:
                content = _script(benchmark, script, implementation)
                entries.append(Entry(f"{own}/{script}", content, 0o755))
        beside = benchmark.results[0].path.parent
        entries += submitted.scaling_entries(beside, f"{top}/results/{system}/{benchmark.name}")
        for result in benchmark.results:
            log = f"{top}/results/{system}/{benchmark.name}/{result.path.name}"
            entries.append(Entry(log, result.path, sha256=result.record["files"][result.path.name]))
    return sorted(entries, key=lambda entry: entry.path)


def _checkout() -> Path:
    """Returns the checkout that this module belongs to."""
    if INSTALLED:
        raise UserError(
            "--source: not given, and an installed package has no commits; name the checkout that ran"
        )
    return Path(__file__).resolve().parents[2]


def _refuse_smoke(benchmarks: list[Benchmark], args: argparse.Namespace) -> None:
    if args.smoke:
        return
    for benchmark in benchmarks:
        if benchmark.smoke:
            raise UserError(
                f"{benchmark.results[0].path.parent}: holds a smoke run, which is no result; "
                "practise with --smoke, or package full-size runs"
            )
        for result in benchmark.results:
            logged = result.run.header.get("submission_org")
            if logged != args.org:
                raise UserError(
                    f"{result.path}: its submission_org is {logged!r}; give --org as the logs say it"
                )


def _keep_apart(output: Path, results: Path) -> None:
    """Refuses an output folder that lies inside the input folder or contains it."""
    target, inputs = output.resolve(), results.resolve()
    if target == inputs or inputs in target.parents or target in inputs.parents:
        raise UserError(f"-o {output}: lies in RESULTS or around it, which is only read; name another folder")


def _commit(benchmark: Benchmark, source: Path, smoke: bool) -> str:
    """Returns the commit that ran; with `smoke`, the checkout's own commit if the run's commit is not available."""
    git = benchmark.common("git")
    commit, dirty = (git.get("commit"), git.get("dirty")) if isinstance(git, dict) else (None, True)
    where = benchmark.results[0].path.parent / "run.json"
    if has_commit(source, commit) and (smoke or not dirty):
        return commit
    if smoke:
        return head(source)
    if dirty:
        raise UserError(f"{where}: the runs used code that was not committed; commit, and run again")
    raise UserError(
        f"{where}: commit {str(commit)[:12]} is not in {source}; name the checkout that ran with --source"
    )


def _system_json(benchmarks: list[Benchmark], org: str, system: str) -> bytes:
    """Returns the machine's 33 fields, including those that only the submission knows."""
    from systems.schema import NAMES

    described = [benchmark.common("system_description") for benchmark in benchmarks]
    for benchmark, fields in zip(benchmarks, described):
        if not isinstance(fields, dict):
            where = benchmark.results[0].path.parent / "run.json"
            raise UserError(f"{where}: system_description is no object; run the benchmark again")
    if any(fields != described[0] for fields in described):
        raise UserError(
            f"{system}: its benchmarks ran on systems of different description; package them apart"
        )
    first = benchmarks[0].results[0]
    filled = {
        "submitter": org,
        "division": str(first.run.header.get("submission_division", "")),
        "status": str(first.run.header.get("submission_status", "")),
        "system_name": str(first.record.get("hardware") or system),
    }
    fields = {name: filled.get(name, described[0].get(name, "")) for name in NAMES}
    return _json(fields)


def _implementation_json(benchmark: Benchmark) -> bytes:
    told = benchmark.common("implementation")
    missing = [
        name for name in IMPLEMENTATION if not isinstance(told, dict) or not isinstance(told.get(name), str)
    ]
    if missing:
        where = benchmark.results[0].path.parent / "run.json"
        raise UserError(f"{where}: implementation lacks {', '.join(missing)}; run the benchmark again")
    return _json({name: told[name] for name in IMPLEMENTATION})


def _script(benchmark: Benchmark, script: str, implementation: str) -> bytes:
    """Returns a script that calls the benchmark's own script for the submitted system."""
    preset = str(benchmark.common("system"))
    if not SAFE_NAME.fullmatch(preset):
        where = benchmark.results[0].path.parent / "run.json"
        raise UserError(f"{where}: {preset[:40]!r} is no name of a preset; run the benchmark again")
    code = f"../implementations/{implementation}/{benchmark.name}/{script}"
    return (
        "#!/usr/bin/env bash\n"
        "# Calls the script of the code that ran, for the system that was submitted.\n"
        "set -euo pipefail\n"
        f"export SYSTEM=${{SYSTEM:-{preset}}}\n"
        f'exec bash "$(dirname "${{BASH_SOURCE[0]}}")/{code}" "$@"\n'
    ).encode()


def _json(content: dict) -> bytes:
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode(errors="backslashreplace")


def _accept(tree: Path, ruleset: str | None, own_runs: bool, smoke: bool) -> bool:
    """Checks the finished tree as a submission and prints what it finds.

    Args:
      tree: the submitter's folder.
      ruleset: the round; None: find it from the tree and the logs.
      own_runs: True for runs of this repository, which must have no finding. For other logs advice is only printed.
      smoke: True for a practice tree, which is accepted whatever the findings.
    """
    outcome = check([tree], ruleset, packaging=own_runs)
    folders = [folder for submission in outcome.submissions for folder in submission.folders]
    dropped = {path for folder in folders for path in folder.dropped}
    findings = [finding for finding in outcome.findings if not _allowed(finding, dropped)]
    bad = [finding for finding in findings if own_runs or finding.severity == ERROR or finding.rule in _NEVER]
    shown = sys.stdout if smoke or not bad else sys.stderr
    for finding in findings:
        place = os.path.relpath(finding.path, tree.parent)
        line = f":{finding.line}" if finding.line else ""
        print(f"{place}{line}: {finding.message} {finding.fix[:1].upper()}{finding.fix[1:]}.", file=shown)
    for path in sorted(dropped):
        place = os.path.relpath(path, tree.parent)
        print(f"{place}: does not count; the score drops it as the slowest run.", file=shown)
    if bad and smoke:
        print(f"A submission would be refused for {len(bad)} findings; this is a practice tree.")
    elif bad:
        print(f"Refused: {len(bad)} findings, nothing written.", file=sys.stderr)
    return smoke or not bad


def _allowed(finding: Finding, dropped: set[str]) -> bool:
    """Whether a finding only reports the failure of a run that may fail (`ResultFolder.dropped`)."""
    if finding.path in dropped:
        return finding.rule not in PACKAGING_ERRORS and finding.rule != "not-checked"
    return finding.rule == "tree.score" and finding.path in {os.path.dirname(path) for path in dropped}
