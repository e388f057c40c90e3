"""Finds the logs of a submission tree, and reports missing code and scripts."""

import errno
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from compliance.findings import ADVICE, ERROR, Finding, finding
from compliance.log.lines import TOKEN

_RESULT = re.compile(r"result_.*\.txt")
LOG_SUFFIXES = (".txt", ".log", ".out")
# mlcommons/training_results_v1.0 and later: READMEs and scripts lie in folders of any name below the benchmark.
_ANYWHERE_FROM = "1.0.0"
_MAX_FOLDERS = 20_000
_SCRIPTS = ("README.md", "setup.sh", "init_datasets.sh", "run_and_time.sh")

SPECIAL = "a special file"  # of `kind_of`; a folder is one, too
HPC_LAYOUT = "the layout of MLPerf HPC, which is not covered"
# Earlier versions' `run --power` wrote a run's readings into power_in_band.
_NO_LOGS = frozenset({"__pycache__", "power_in_band"})


def find_logs(root: Path) -> tuple[list[str], list[Finding]]:
    """Finds the logs below `root`.

    Logs are result_*.txt files and, outside the layout of a submission, every text file that holds a record. If there
    are none of these, any file that holds a record is a log.

    A log with another name in a benchmark's results directory is advice, because no tool reads it; so is a log in a
    deeper directory. Code under `benchmarks/` beside `results/` may hold sample logs, which do not count.
    """
    results, others, rest, findings = [], [], [], []

    def unreadable(error: OSError) -> None:
        findings.append(unreadable_directory(error.filename, error))

    for directory, names, files in os.walk(root, onerror=unreadable):
        names[:] = sorted(name for name in names if not name.startswith(".") and name not in _NO_LOGS)
        code, deep = _is_code(directory), _too_deep(directory)
        for name in () if code else names:  # links in code hide no logs
            path = os.path.join(directory, name)
            if os.path.islink(path):  # os.walk does not follow links
                fix = "put the directory itself here, or check what it points to"
                findings.append(unchecked(path, "this directory", "a symbolic link", fix))
        if deep and any(_RESULT.fullmatch(name) for name in files):
            findings.append(_deeper(directory))
        for name in sorted(files):
            path = os.path.join(directory, name)
            if _RESULT.fullmatch(name):
                if code or deep:
                    continue
                kind = kind_of(path)
                if kind == "file":
                    results.append(path)
                else:
                    findings.append(unchecked(path, "this file", kind, "put the log itself here, not a link"))
            elif kind_of(path) == "file":
                (others if name.endswith(LOG_SUFFIXES) else rest).append(path)
        place = place_of(Path(os.path.abspath(directory)))
        if place and place[2] and not names and not any(_RESULT.fullmatch(name) for name in files):
            actual = f"{len(files)} other files"
            findings.append(finding("tree.no-results", ERROR, directory, "result_<i>.txt", actual))
    for path in filter(has_token, others):
        directory = Path(os.path.abspath(path)).parent
        if place_of(directory) is not None:
            fix = "name it result_<i>.txt, or check it by its own name"
            other = "another name than result_<i>.txt"
            findings.append(unchecked(path, "this log", other, fix, ADVICE))
        # Sample logs may lie beside code.
        elif not {"benchmarks", "implementations"} & {*directory.parts} and not _too_deep(directory):
            results.append(path)
    if not results and not findings:
        results = [path for path in rest if has_token(path)]
    return sorted(results), findings


def _deeper(directory: str) -> Finding:
    """Builds the finding about logs below a folder of runs."""
    if {"weak", "strong"} & {Path(directory).parent.name, Path(directory).name}:
        fix = "nothing: this checker has no rules of MLPerf HPC"
        return unchecked(directory, "these logs", HPC_LAYOUT, fix)
    actual, fix = "deeper than results/<system>/<benchmark>/", "move them up, if they are runs of the score"
    return unchecked(directory, "these logs", actual, fix, ADVICE)


def _is_code(directory: str) -> bool:
    """Whether a directory lies in a `benchmarks/` that is beside a `results/`."""
    parts = Path(os.path.abspath(directory)).parts
    return any(
        part == "benchmarks" and os.path.isdir(os.path.join(*parts[:index], "results"))
        for index, part in enumerate(parts)
        if index
    )


def _too_deep(directory: str | Path) -> bool:
    """Whether a directory lies below `results/<system>/<benchmark>/` of a submitter that also has `systems/`."""
    parts = Path(os.path.abspath(directory)).parts
    for index, part in enumerate(parts):
        if part == "results" and index and len(parts) - index > 3:
            return os.path.isdir(os.path.join(*parts[:index], "systems"))
    return False


def unreadable_directory(directory: str | Path, error: OSError) -> Finding:
    """Builds the finding about a directory that cannot be listed."""
    return unchecked(directory, "this directory", reason_of(error), "make it readable")


def reason_of(error: OSError) -> str:
    """Returns the system's message for an error."""
    return error.strerror or type(error).__name__


def unchecked(path: str | Path, what: str, actual: str, fix: str, severity: str = ERROR) -> Finding:
    """Builds the finding about a file or directory that exists but was not checked."""
    return finding("not-checked", severity, path, "a plain, readable file", actual, what=what, fix=fix)


def read_small(path: str | Path, most: int) -> bytes:
    """Reads a regular file of at most `most` bytes; safe if it is replaced meanwhile by a link, pipe or device.

    Raises:
      FileNotFoundError: the path does not exist.
      OSError: the file cannot be read.
      ValueError: it is not a regular file, or is longer.
    """
    kind = kind_of(path)
    if kind != "file" and not os.path.lexists(path):
        raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
    if kind != "file":
        raise ValueError(f"{kind}, not a plain file")
    # Do not block: a pipe that has replaced the file then opens at once.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("a special file, not a plain file")
        content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"more than {most} bytes")
    return content


def kind_of(path: str | Path) -> str:
    """Returns a path's kind without following links: "file", or a description of what is refused."""
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return "a file that cannot be read"
    if stat.S_ISLNK(mode):
        return "a symbolic link"
    return "file" if stat.S_ISREG(mode) else SPECIAL


def plain_files(folder: Path, pattern: str) -> list[Path]:
    """Returns the plain files of a folder whose names match a pattern, sorted: no links, pipes or devices."""
    return [path for path in sorted(folder.glob(pattern)) if kind_of(path) == "file"]


def walk(root: Path) -> Iterator[tuple[str, list[str]]]:
    """Yields (folder, its files, sorted) below a folder of code, without .git and __pycache__."""
    for directory, names, files in os.walk(root):
        names[:] = sorted(name for name in names if name not in (".git", "__pycache__"))
        yield directory, sorted(files)


def by_number(path: Path) -> list[int | str]:
    """Sorts result_2.txt before result_10.txt."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", path.name)]


def has_token(path: str | Path) -> bool:
    """Whether the first part of a file has a record; True for one that cannot be read."""
    try:
        with open(path, "rb") as file:
            return TOKEN in file.read(1 << 20)
    except OSError:
        return True  # the log's own check reports that it is unreadable


def place_of(directory: Path) -> tuple[Path, str, str | None] | None:
    """Returns (org, system, benchmark) of a directory one or two levels below `results/`; None for any other.

    The benchmark is None one level below.
    """
    names = directory.parts
    if "results" not in names:
        return None
    index = len(names) - 1 - names[::-1].index("results")
    below = names[index + 1 :]
    if not 1 <= len(below) <= 2:
        return None
    return Path(*names[:index]) if index else Path("."), below[0], below[1] if len(below) == 2 else None


def is_below(path: str, folder: Path) -> bool:
    """Whether a path is a folder or lies in it."""
    whole = Path(os.path.abspath(path))
    return whole == folder or folder in whole.parents


def missing_code(org: Path, pairs: list[str], ruleset: str) -> Iterator[Finding]:
    """Reports missing files that the rules require with the results: scripts, README, implementation description.

    From round 1.0 on submitters put them in any folder of benchmarks/<benchmark>/, and no published tree of late rounds
    has all of them: what counts is a README and a script that runs the benchmark.

    Args:
      pairs: "system/benchmark" of every directory of results.
    """
    root = org / "benchmarks"
    if not root.is_dir():
        expected = "benchmarks/<benchmark>/ with code, scripts and README"
        yield finding("tree.file-missing", ADVICE, org, expected, "none", name="the directory benchmarks/")
        return
    yield from (_missing_by_system if ruleset < _ANYWHERE_FROM else _missing_by_benchmark)(root, pairs)


def _missing_by_system(root: Path, pairs: list[str]) -> Iterator[Finding]:
    """Looks where submission_rules.adoc puts the files, one finding for each system and benchmark."""
    for pair in pairs:
        system, benchmark = pair.split("/", 1)
        top = root / benchmark
        inside = top / "implementations"
        try:
            places = [top / system, inside / system, *(inside / name / system for name in _names(inside))]
            present = {name for place in places for name in _names(place)}
            shared = _names(top)
        except OSError as error:  # do not report files in an unreadable directory as missing
            yield unreadable_directory(error.filename, error)
            continue
        missing = [name for name in _SCRIPTS if name not in present | (shared & {"README.md"})]
        if not any(name.startswith(f"{system}_") and name.endswith(".json") for name in present):
            missing.append(f"{system}_<implementation>.json")
        if missing:
            names = ", ".join(missing)
            expected = f"{names} in benchmarks/{benchmark}/{system}/"
            yield finding("tree.file-missing", ADVICE, top / system, expected, "none", name=names)


def _missing_by_benchmark(root: Path, pairs: list[str]) -> Iterator[Finding]:
    """Looks everywhere below benchmarks/<benchmark>/, one finding for each benchmark."""
    for benchmark in sorted({pair.split("/", 1)[1] for pair in pairs}):
        top = root / benchmark
        readme = script = False
        try:
            for number, (_, _, files) in enumerate(os.walk(top, onerror=_raise)):
                readme |= any(name.lower().startswith("readme") for name in files)
                script |= any(name.endswith((".sh", ".sub", ".slurm", ".sbatch", ".py")) for name in files)
                if (readme and script) or number > _MAX_FOLDERS:
                    break
        except FileNotFoundError:
            place = f"benchmarks/{benchmark}/"
            about = f"{place} with the code that ran", "none"
            yield finding("tree.file-missing", ADVICE, root, *about, name=place)
            continue
        except OSError as error:
            yield unreadable_directory(error.filename, error)
            continue
        pairs = ("README.md", readme), ("run_and_time.sh", script)
        missing = [name for name, exists in pairs if not exists]
        if missing:
            expected = f"{' and '.join(missing)} below benchmarks/{benchmark}/"
            yield finding("tree.file-missing", ADVICE, top, expected, "none", name=" and ".join(missing))


def _raise(error: OSError) -> None:
    raise error


def _names(directory: Path) -> set[str]:
    """Returns the names in a directory, none if it does not exist. Raises OSError if it cannot be read."""
    try:
        return set(os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return set()
