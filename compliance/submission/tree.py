"""Checks submission trees: do logs, paths, system descriptions and the other files agree?

The layout follows the rules (mlcommons/policies, submission_rules, 2020):
`<org>/results/<system>/<benchmark>/result_<i>.txt`, `<org>/systems/<system>.json`, and below
`<org>/benchmarks/<benchmark>/` a directory for the system, with the scripts, the README and
`<system>_<implementation>.json`. This directory may be beside `implementations/` or inside it (both were published).

A tree that contains a submitter's whole folder is a submission: anything that would get it refused is an error. For a
part of such a folder (`results/`, a system, a benchmark) the same finding is advice.
"""

import contextlib
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from common.errors import UserError
from compliance.code import advice
from compliance.findings import ADVICE, ERROR, Finding, finding
from compliance.hints import nearest
from compliance.log.check_log import LogResult, check_logs
from compliance.log.find_round import Choice, find, of_folder, of_submission
from compliance.submission import coherence, repo_rules, rounds, tree_files, tree_runs, tree_system, verdict
from compliance.submission.verdict import Outcome, ResultFolder, Submission
from compliance.verdict import GO, NOT_CHECKED, Verdict, merge

# Judges the logs of a tree: (paths, ruleset, division) -> a result for each log.
LogChecker = Callable[[Sequence[str], "str | None", "str | None"], list[LogResult]]


def judge_tree(
    root: Path, ruleset: str | None = None, division: str | None = None, log_checker: LogChecker | None = None
) -> Outcome:
    """Checks everything below `root`. The outcome's findings are about the tree; each log has its own.

    Args:
      root: a submitter's folder, a folder of several, or a part of one.
      ruleset: the round; None: the round in the folder's name (training_results_v5.0), else the one each log suggests.
      division: the division that every log must be in; None: the division that each log names.
      log_checker: judges the logs; None: `check_logs`.
    """
    logs, findings = tree_files.find_logs(root)
    log_checker = log_checker or check_logs
    results = _judge_logs(root, logs, ruleset, division, log_checker)
    if family := _family(results, findings, log_checker):
        names = {"wording": "not-checked.family", "family": family}
        about = finding("not-checked", ADVICE, root, "logs of MLPerf Training", f"logs of {family}", **names)
        silent = [one._replace(findings=[]) for one in results]
        others = [one for one in findings if one.severity == ADVICE]
        return Outcome(logs, [about, *others], silent, [], Verdict(NOT_CHECKED, (about.message.rstrip("."),)))
    folder_choice = of_folder(root)
    ruleset = ruleset or (folder_choice and folder_choice.ruleset)
    if not logs and not any(remarks.rule == "not-checked" for remarks in findings):
        findings.append(finding("tree.empty", ERROR, root, "result_*.txt", "none"))
    orgs: dict[Path, dict[Path, list[LogResult]]] = defaultdict(lambda: defaultdict(list))
    loose: dict[Path, list[LogResult]] = defaultdict(list)
    for result in results:
        directory = Path(os.path.abspath(result.path)).parent
        place = tree_files.place_of(directory)
        (orgs[place[0]] if place else loose)[directory].append(result)
    findings += tree_runs.duplicates(results)
    for group in loose.values():
        findings += tree_runs.same_seed(Path(group[0].path).parent, group)
    submissions, described = [], []
    for org, folders in orgs.items():
        one = _Submitter(root, org, folders, ruleset)
        remarks = one.check()
        described += one.described
        findings += remarks
        own_findings = [old for old in findings if tree_files.is_below(old.path, org)]
        submissions.append(one.submission(own_findings))
    outcome = merge([one.verdict for one in submissions], [one.path.name for one in submissions])
    outside = any(Path(log.path).match("result_*.txt") for group in loose.values() for log in group)
    if not submissions and any(remarks.severity == ERROR for remarks in findings):
        outcome = verdict.judge(findings, [], False, False)
    elif not submissions or (outcome.answer == GO and outside):
        outcome = Verdict(NOT_CHECKED, (_outside(root, loose),))
    return Outcome([*logs, *described], list(dict.fromkeys(findings)), results, submissions, outcome)


def _family(results: Sequence[LogResult], findings: Sequence[Finding], checker: LogChecker) -> str:
    """Returns what all logs are of, if it has no rules here: "MLPerf HPC", "MLPerf Training v0.5"; or "".

    In the layout of HPC one log of each folder answers for it. An error of another kind has to be told: "".
    """
    deep = [one for one in findings if one.found == tree_files.HPC_LAYOUT]
    if any(one.severity == ERROR and one not in deep for one in findings):
        return ""
    paths = [str(path) for one in deep for path in tree_files.plain_files(Path(one.path), "result_*.txt")[:1]]
    families = {one.family for one in (*results, *checker(paths, None, None))}
    return families.pop() if len(families) == 1 else ""


def _outside(root: Path, loose: Iterable[Path]) -> str:
    """Says that no rule of submissions applies to logs outside the layout, and what is missing."""
    first = min(loose, default=Path(os.path.abspath(root)))
    parts = [part for part in first.parts if part.casefold() == "results" or nearest(part, ["results"])]
    hint = f"{parts[-1]}/ has to be called results/" if parts else f"{first.name}/ is in no results/<system>/"
    return f"the rules of submissions need results/<system>/<benchmark>/ and systems/: {hint}"


def _judge_logs(
    root: Path, logs: Sequence[str], ruleset: str | None, division: str | None, checker: LogChecker
) -> list[LogResult]:
    """Returns the logs' results, in order; without a ruleset it judges all logs of a submitter by one round."""
    if ruleset is not None:
        return checker(logs, ruleset, division)
    groups: dict[Path | None, list[str]] = defaultdict(list)
    for path in logs:
        place = tree_files.place_of(Path(os.path.abspath(path)).parent)
        groups[place and place[0]].append(path)
    results: dict[str, LogResult] = {}
    for org, paths in groups.items():
        choice = of_folder(root) or (_round_of(paths) if org is not None else None)
        for result in checker(paths, choice and choice.ruleset, division):
            results[result.path] = result._replace(ruleset_reason=choice.reason) if choice else result
    return [results[path] for path in logs]


def _round_of(paths: Sequence[str]) -> Choice | None:
    """Returns the round of a submitter's logs; in each folder the first log that reveals a round decides."""
    choices: dict[str, Choice] = {}
    for path in paths:
        folder = os.path.dirname(path)
        if folder not in choices:
            with contextlib.suppress(UserError):  # an unreadable log is a finding of its own
                choice = find(path)
                if choice.fits:
                    choices[folder] = choice
    return of_submission(choices.values())


class _Submitter:
    """One submitter's folder during its check."""

    def __init__(
        self, root: Path, org: Path, groups: dict[Path, list[LogResult]], ruleset: str | None
    ) -> None:
        self.root, self.org, self.groups = root, org, groups
        counts = Counter(result.ruleset for group in groups.values() for result in group if result.ruleset)
        self.ruleset = ruleset or (counts.most_common(1)[0][0] if counts else "0.7.0")
        top = Path(os.path.abspath(root))
        self.is_whole = top == org or top in org.parents
        self.practice = any(result.smoke for group in groups.values() for result in group)
        self.strict = self.is_whole and not self.practice
        self.described: list[str] = []
        self.folders: list[ResultFolder] = []

    def check(self) -> list[Finding]:
        """Returns the findings about the submitter's folder; fills `folders` and `described`."""
        findings: list[Finding] = []
        pairs: list[str] = []
        read: dict[Path, dict | None] = {}
        for directory, group in self.groups.items():
            shown_as = Path(group[0].path).parent
            _, system, benchmark = tree_files.place_of(directory)
            path = self.org / "systems" / f"{system}.json"
            if path not in read:
                logged = next((one.status for one in group if one.status), None)
                arguments = path, shown_as, self.ruleset, self.strict, logged
                read[path], remarks = tree_system.read_description(*arguments)
                findings += remarks
            findings += coherence.of_folder(shown_as, system, read[path], path, group, self.ruleset)
            folder, remarks = tree_runs.one_folder(
                self.org, shown_as, system, benchmark, group, read[path], self.ruleset, self.strict
            )
            findings += remarks
            if folder is not None:
                self.folders.append(folder)
                pairs.append(f"{system}/{benchmark}")
        findings += self._other_descriptions(read)
        contents = [content for content in read.values() if content is not None]
        logged = [result.org for group in self.groups.values() for result in group]
        if self.is_whole:
            submitters = [content.get("submitter") for content in contents]
            findings += coherence.organizations(self.org, logged, submitters)
        systems = {tree_files.place_of(directory)[1] for directory in self.groups}
        findings += coherence.hidden_names(self.org, sorted(systems), contents)
        self.described = [str(path) for path, content in read.items() if content is not None]
        if self.is_whole:
            findings += tree_files.missing_code(self.org, sorted(pairs), self.ruleset)
            findings += advice.of_org(self.org, {one.path: one.runs for one in self.folders}, self.ruleset)
            if rounds.number(self.ruleset) >= repo_rules.FIRST_ROUND:
                findings += repo_rules.repository(self.org)
        return findings

    def _other_descriptions(self, read: dict[Path, dict | None]) -> list[Finding]:
        """Checks descriptions that no result uses: the stock package checker reads them, too."""
        findings: list[Finding] = []
        names: list[str] = []
        with contextlib.suppress(OSError):
            names = sorted(os.listdir(self.org / "systems")) if self.strict else []
        for path in (self.org / "systems" / name for name in names if name.endswith(".json")):
            if path not in read:
                read[path], remarks = tree_system.read_description(path, path, self.ruleset, strict=True)
                findings += remarks
        return findings

    def submission(self, findings: list[Finding]) -> Submission:
        """Returns the submission with the verdict that follows from its findings."""
        unread = [
            f"{Path(result.path).name} was not checked"
            for group in self.groups.values()
            for result in group
            if any(remark.rule == "not-checked" for remark in result.findings)
        ]
        answer = verdict.judge(findings, unread, bool(self.folders), self.practice)
        if not self.is_whole and answer.answer == GO:
            reason = "a part of a submission; name the folder that holds results/ and systems/"
            answer = Verdict(NOT_CHECKED, (reason,))
        return Submission(self.org, self.ruleset, tuple(self.folders), answer)
