"""Adds advice about a submitter's configurations, framework logs, and code to the check of a tree."""

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path

from compliance.code import agreement, litter
from compliance.code.agreement import DIFFERENT, Agreement
from compliance.findings import ADVICE, Finding, finding
from compliance.hints import listed
from compliance.log.logs import shown
from compliance.submission import rounds
from compliance.submission.runs import Run
from compliance.submission.tree_files import kind_of, plain_files

# mlperf_logging/compliance_checker/training_6.0.0/common.yaml has the key config_filename first.
_NAMED_FROM = (6, 0)
# training_rules.adoc, "Result files" (mlcommons/training_policies #588), after round 6.0.
_FRAMEWORK_FROM = (6, 1)
_LEAST_LINES = 10  # other lines than records that make a log of a framework
_READ = 4 << 20


def of_org(org: Path, folders: Mapping[Path, Sequence[Run]], ruleset: str) -> Iterator[Finding]:
    """Yields advice about a submitter's whole folder.

    Args:
      folders: its folders of runs, `results/<system>/<benchmark>`, with their runs.
    """
    code = org / "benchmarks"
    if code.is_dir() and not code.is_symlink():
        if rounds.number(ruleset) >= _NAMED_FROM:
            names = list(agreement.files(code))
            for folder, logs, found in agreement.of_tree(org, folders):
                yield from _configuration(folder, logs, found, names)
        yield from litter.of_code(code)
    if rounds.number(ruleset) >= _FRAMEWORK_FROM:
        for folder in folders:
            yield from _framework(folder)


def _configuration(folder: Path, logs: list[Path], one: Agreement, names: list[str]) -> Iterator[Finding]:
    where = folder if len(logs) > 1 else logs[0]
    base = one.named.replace("\\", "/").rpartition("/")[2]
    expected = f"{base[:80]} below benchmarks/{folder.name}/"
    if one.file is None:
        fix = "add the file that ran"
        for near in get_close_matches(base[:100], names, n=1, cutoff=0.6):
            fix = f"add it, or log the name of the file that ran: {near} is there"
        yield finding("config.missing", ADVICE, where, expected, f"none in {len(logs)} logs' code", near=fix)
        return
    if one.elsewhere:
        about = {"wording": "config.missing.elsewhere", "benchmark": folder.name}
        yield finding("config.missing", ADVICE, where, expected, str(one.file), **about)
    if one.problem:
        yield finding("config.unread", ADVICE, one.file, one.kind, one.problem)
    for setting in one.settings:
        if setting.answer == DIFFERENT:
            here = f"{setting.name} = {', '.join(setting.values[:4])} in {one.file.name}"[:200]
            expected = f"{setting.name} = {shown(setting.logged)}, as in the log"
            yield finding("config.differs", ADVICE, where, expected, here, key=setting.name)


def _framework(folder: Path) -> Iterator[Finding]:
    bare = [log.name for log in plain_files(folder, "result_*.txt") if not has_framework_log(log)]
    if bare:
        found = f"records alone in {listed(bare, 4)}"
        yield finding("log.framework", ADVICE, folder, "the framework's whole output in each log", found)


def has_framework_log(path: Path) -> bool:
    """Whether a log holds lines of a framework's own beside its records; True for one that cannot be read."""
    if kind_of(path) != "file":
        return True
    try:
        with open(path, "rb") as file:
            lines = file.read(_READ).splitlines()
    except OSError:
        return True
    return sum(bool(line.strip()) and b":::MLL" not in line for line in lines) >= _LEAST_LINES
