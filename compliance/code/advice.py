"""Adds advice about a submitter's configurations, framework logs, and code to the check of a tree."""

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import islice
from pathlib import Path

from compliance.code import litter
from compliance.findings import ADVICE, Finding, finding
from compliance.hints import listed
from compliance.submission import rounds
from compliance.submission.runs import Run
from compliance.submission.tree_files import kind_of, plain_files, walk

# mlperf_logging/compliance_checker/training_6.0.0/common.yaml has the key config_filename first. The code has the file
# of this name (mlcommons/training #880).
_NAMED_FROM = (6, 0)
# training_rules.adoc, "Result files" (mlcommons/training_policies #588), after round 6.0.
_FRAMEWORK_FROM = (6, 1)
_LEAST_LINES = 10  # other lines than records that make a log of a framework
_READ = 4 << 20
_MAX_FILES = 100_000


def of_org(org: Path, folders: Mapping[Path, Sequence[Run]], ruleset: str) -> Iterator[Finding]:
    """Yields advice about a submitter's whole folder.

    Args:
      folders: its folders of runs, `results/<system>/<benchmark>`, with their runs.
    """
    code = org / "benchmarks"
    if code.is_dir() and not code.is_symlink():
        if rounds.number(ruleset) >= _NAMED_FROM:
            for folder, runs in folders.items():
                yield from _configurations(folder, runs, code)
        yield from litter.of_code(code)
    if rounds.number(ruleset) >= _FRAMEWORK_FROM:
        for folder in folders:
            yield from _framework(folder)


def _configurations(folder: Path, runs: Sequence[Run], code: Path) -> Iterator[Finding]:
    """Looks for the files that the logs of a folder name as their configuration in the code of its benchmark."""
    logs: dict[str, list[Path]] = {}
    for run in runs:
        config = run.settings.get("config_filename")
        if isinstance(config, str) and config.strip():
            logs.setdefault(config.strip().replace("\\", "/").rpartition("/")[2], []).append(run.path)
    names = files(code / folder.name) if logs else frozenset()
    for base, paths in logs.items():
        if base not in names:
            fix = "add the file that ran"
            alike = [name for name in names if name.endswith(Path(base).suffix)]
            for near in get_close_matches(base[:100], alike, n=1, cutoff=0.6):
                fix = f"add it, or log the name of the file that ran: {near} is there"
            where = folder if len(paths) > 1 else paths[0]
            expected = f"{base[:80]} below benchmarks/{folder.name}/"
            yield finding(
                "config.missing", ADVICE, where, expected, f"none in {len(paths)} logs' code", near=fix
            )


def files(code: Path) -> frozenset[str]:
    """Returns the names of the files below a folder of code; none of a link to a folder."""
    every = () if code.is_symlink() else (name for _, names in walk(code) for name in names)
    return frozenset(islice(every, _MAX_FILES))


def _framework(folder: Path) -> Iterator[Finding]:
    bare = [log.name for log in plain_files(folder, "result_*.txt") if not has_framework_log(log)]
    if bare:
        actual = f"records alone in {listed(bare, 4)}"
        yield finding("log.framework", ADVICE, folder, "the framework's whole output in each log", actual)


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
