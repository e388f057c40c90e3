"""Reads the inputs of a package: results with their run.json, and the code of the commit that produced them."""

import hashlib
import json
import os
import re
import stat
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from common.errors import UserError
from compliance.submission.runs import Run, read_run

SCRIPTS = ("setup.sh", "init_datasets.sh", "run_and_time.sh")
# The fields that the 2020 submission rules require in <system>_<implementation>.json
# (mlcommons/policies submission_rules.adoc at 3f35851).
IMPLEMENTATION = (
    *("starting_weights_filename", "weight_transformations", "weight_data_types"),
    *("input_data_types", "retraining"),
)
# The folders of a checkout that a run needs in addition to its benchmark's folder.
_CODE = ("common", "compliance", "systems", "timetotrain", "tools/requirements")
_CODE_FILES = frozenset(("LICENSE", "Makefile", "README.md", "pyproject.toml", "setup.py"))
_MAX_JSON_BYTES = 64 << 20
SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")


@dataclass(frozen=True)
class Result:
    """One log and its record in run.json."""

    path: Path
    run: Run
    record: dict


@dataclass(frozen=True)
class Benchmark:
    """The runs of one benchmark on the system. Whatever describes all the runs must be equal in each."""

    name: str
    results: tuple[Result, ...]

    def common(self, field: str) -> object:
        """Returns the value of `field` in the runs' records. Raises UserError if the records differ."""
        values = [result.record.get(field) for result in self.results]
        if any(value != values[0] for value in values):
            where = self.results[0].path.parent / "run.json"
            raise UserError(f"{where}: the runs differ in {field!r}; package only runs of one kind together")
        return values[0]

    @property
    def smoke(self) -> bool:
        return any(result.run.smoke or result.record.get("smoke_run") for result in self.results)


def read_results(folder: Path, system: str) -> list[Benchmark]:
    """Reads the benchmarks in `folder`/`system` (or in `folder` itself if it is named `system`), in order.

    Raises UserError for links, logs without a record, logs that changed since their run, and records without a log.
    """
    folder = Path(folder)
    root = folder if folder.name == system and not (folder / system).is_dir() else folder / system
    _real_folder(root, f"name the folder that holds {system}/")
    benchmarks = []
    for place in sorted(root.iterdir()):
        if place.name.startswith("."):
            continue
        if place.is_symlink() or place.is_dir():
            _real_folder(place, "")
            benchmarks.append(_read_benchmark(place))
    if not benchmarks:
        raise UserError(
            f"{root}: holds no benchmark's folder; it should have {system}/<benchmark>/result_0.txt"
        )
    return benchmarks


def _real_folder(path: Path, fix: str) -> None:
    if path.is_symlink():
        raise UserError(
            f"{path}: is a symbolic link, and the packager follows none; put the folder itself there"
        )
    if not path.is_dir():
        raise UserError(f"{path}: no such folder; {fix}")


def _read_benchmark(place: Path) -> Benchmark:
    if not SAFE_NAME.fullmatch(place.name):
        raise UserError(f"{place}: not a name for a benchmark; use letters, digits, '.', '_' and '-'")
    records = _records(place / "run.json")
    logs = sorted(path.name for path in place.iterdir() if re.fullmatch(r"result_.*", path.name))
    strange = [name for name in logs if name not in records]
    if strange:
        raise UserError(
            f"{place / strange[0]}: has no record in run.json; package runs of this repository only"
        )
    absent = sorted(set(records) - set(logs))
    if absent:
        raise UserError(f"{place / absent[0]}: is in run.json but not here; no run of a set may be left out")
    results = tuple(_read_result(place / name, records[name]) for name in sorted(records, key=_number))
    return Benchmark(place.name, results)


def _number(name: str) -> tuple[int, str]:
    digits = re.search(r"\d+", name)
    return (int(digits[0]) if digits else 0, name)


def _records(path: Path) -> dict[str, dict]:
    try:
        content = json.loads(read_file(path, _MAX_JSON_BYTES))
        runs = content["runs"]
        if content["schema"] != 1 or not runs:
            raise ValueError("not schema 1 with runs")
        for name, record in runs.items():
            if not re.fullmatch(r"result_\d{1,4}\.txt", name):
                raise ValueError(f"a record named {name[:40]!r}; a run's log is result_<i>.txt")
            if not isinstance(record, dict):
                raise ValueError(f"the record of {name} is not an object")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(
            f"{path}: not a run.json of this repository ({error}); run the benchmark again"
        ) from None
    return runs


def _read_result(path: Path, record: dict) -> Result:
    digest = hashlib.sha256()
    with open_file(path) as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    files = record.get("files")
    if not isinstance(files, dict) or files.get(path.name) != digest.hexdigest():
        raise UserError(f"{path}: is not the file that its run wrote (SHA-256 in run.json); restore it")
    return Result(path, read_run(path), record)


def open_file(path: Path):
    """Opens a regular file for reading; refuses a link or anything special."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        what = "is a symbolic link, and the packager follows none" if path.is_symlink() else error.strerror
        raise UserError(f"{path}: {what}; put a readable file there") from None
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise UserError(f"{path}: is not a regular file; put the log itself there")
    return open(handle, "rb")


def read_file(path: Path, limit: int) -> bytes:
    """Returns the content of a regular file of at most `limit` bytes."""
    with open_file(path) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise UserError(f"{path}: more than {limit:,} bytes, which no run writes; restore it")
    return data


# ------------------------------------------------------------------------------------------------ code


def code_files(source: Path, commit: str, benchmark: str) -> dict[str, tuple[int, bytes]]:
    """Reads the files that a run of the benchmark needs from a commit: {path: (mode, content)}.

    Raises UserError if the commit does not exist, or if a link or a submodule is among the files.
    """
    listing = _git(source, "ls-tree", "-r", "-z", "--full-tree", commit)
    wanted: list[tuple[str, int, str]] = []
    for entry in filter(None, listing.split(b"\0")):
        head, _, raw = entry.partition(b"\t")
        mode, kind, name = *head.split()[:2], raw.decode(errors="surrogateescape")
        folders = tuple(f"{folder}/" for folder in (*_CODE, benchmark))
        if not (name in _CODE_FILES or name.startswith(folders)):
            continue
        if kind != b"blob" or mode == b"120000" or not name.isprintable() or ".." in name.split("/"):
            raise UserError(
                f"{source}: {name!r} in {commit[:12]} is not a plain file; packages hold plain files only"
            )
        wanted.append((name, 0o755 if mode == b"100755" else 0o644, head.split()[2].decode()))
    if not any(name.startswith(f"{benchmark}/") for name, _, _ in wanted):
        raise UserError(
            f"{source}: commit {commit[:12]} has no folder {benchmark}/; name its checkout with --source"
        )
    objects = _git(
        source, "cat-file", "--batch", text="\n".join(sha for _, _, sha in wanted).encode() + b"\n"
    )
    files, place = {}, 0
    for name, mode, _ in wanted:
        end = objects.index(b"\n", place)
        size = int(objects[place:end].split()[2])
        files[name] = (mode, objects[end + 1 : end + 1 + size])
        place = end + 2 + size
    return files


def head(source: Path) -> str:
    """Returns the commit that is checked out."""
    return _git(source, "rev-parse", "--verify", "HEAD^{commit}").decode().strip()


def has_commit(source: Path, commit: object) -> bool:
    """Whether the checkout knows the commit."""
    if not (isinstance(commit, str) and re.fullmatch(r"[0-9a-f]{40,64}", commit)):
        return False
    try:
        _git(source, "cat-file", "-e", f"{commit}^{{commit}}")
    except UserError:
        return False
    return True


def _git(source: Path, *arguments: str, text: bytes | None = None) -> bytes:
    command: Sequence[str] = ("git", "-C", str(source), *arguments)
    try:
        done = subprocess.run(command, input=text, capture_output=True, timeout=120)
    except (OSError, subprocess.SubprocessError) as error:
        raise UserError(f"git: cannot run ({error}); install git, which knows what code ran") from None
    if done.returncode:
        reason = done.stderr.decode(errors="replace").strip().splitlines() or ["failed"]
        raise UserError(
            f"{source}: git {arguments[0]}: {reason[-1]}; name the checkout that ran with --source"
        )
    return done.stdout
