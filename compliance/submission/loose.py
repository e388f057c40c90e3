"""Takes folders of runs outside a submitter's tree as folders to score: a person has logs, and wants their score."""

from collections import defaultdict
from dataclasses import replace
from pathlib import Path

from compliance.findings import ERROR, finding
from compliance.log.check_log import LogResult, check_logs
from compliance.submission import tree_runs
from compliance.submission.verdict import Outcome, ResultFolder, Submission


def with_loose_folders(outcome: Outcome, ruleset: str | None = None) -> Outcome:
    """Returns the outcome with one submission for the logs outside any submission, if it has none.

    The submission keeps the outcome's verdict, so it is never a go. Its system is the folder that holds the runs. A log
    without submission_benchmark is a run of its folder, as in a tree; once it has started, a finding names it.
    """
    if outcome.submissions:
        return outcome
    groups: dict[Path, list[LogResult]] = defaultdict(list)
    for log in outcome.logs:
        groups[Path(log.path).parent].append(log)
    folders: list[ResultFolder] = []
    nameless = []
    for path, logs in groups.items():
        named_logs = [log for log in logs if isinstance(log.benchmark, str)]
        if len({log.benchmark for log in named_logs}) == 1:
            used = ruleset or named_logs[0].ruleset
            if any(log.run is None or log.ruleset != used for log in logs):
                logs = check_logs([log.path for log in logs], used)
            place = path.resolve().name, named_logs[0].benchmark
            folder, _ = tree_runs.one_folder(path.parent, path, *place, logs, None, used, strict=False)
            folders += [replace(folder, path=path)] if folder else []
            nameless += [
                finding("tree.benchmark", ERROR, log.path, place[1], "none", wording="tree.benchmark.none")
                for log in logs
                if not isinstance(log.benchmark, str) and log.run is not None and log.run.started is not None
            ]
    top = folders[0].path.parent if folders else Path()
    one = Submission(top, folders[0].ruleset, tuple(folders), outcome.verdict) if folders else None
    return outcome._replace(findings=[*outcome.findings, *nameless], submissions=[one] if one else [])
