"""Lists and writes the files of a package: the tree, a reproducible tar, and a manifest with every file's SHA-256."""

import hashlib
import json
import os
import re
import shutil
import stat
import tarfile
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from common.errors import UserError
from compliance.submission import scaling
from compliance.submission.runs import Run

MANIFEST = "SHA256SUMS"
SCRIPTS = ("setup.sh", "init_datasets.sh", "run_and_time.sh")
SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")
MAX_JSON_BYTES = 64 << 20
_LINK = "is a symbolic link, and the packager follows none"
_TIME = 315_532_800  # 1980-01-01: fixed, so that equal files give equal tars; late enough for every tool


@dataclass(frozen=True)
class Entry:
    """A file of the package: its path in the tree, its mode, and its content (bytes, or the log to copy).

    `sha256`: the expected digest of the content, if known.
    """

    path: str
    content: bytes | Path
    mode: int = 0o644
    sha256: str = ""

    @property
    def size(self) -> int:
        return len(self.content) if isinstance(self.content, bytes) else self.content.stat().st_size


@dataclass(frozen=True)
class Part:
    """One benchmark of a package.

    `runs` are its logs, in order, each with its digest ("": any). `code` has (mode, content) by path; README.md and the
    scripts lie in its folder `inside`, and `call` returns the lines that run a script of this path. `described` is the
    content of <system>_<implementation>.json; None without.
    """

    benchmark: str
    runs: tuple[tuple[Run, str], ...]
    code: dict[str, tuple[int, bytes | Path]]
    inside: str
    call: Callable[[str], str]
    described: bytes | None

    @property
    def folder(self) -> Path:
        return self.runs[0][0].path.parent


def plan(
    benchmarks: list[Part], description: bytes, top: str, system: str, implementation: str
) -> list[Entry]:
    """Lists every file of the tree, in order: benchmarks, results, and the description of the system.

    Raises UserError for a scaling.json of the review committee that holds no factor; one that does goes along.
    """
    entries = [Entry(f"{top}/systems/{system}.json", description)]
    for part in benchmarks:
        place, results = f"{top}/benchmarks/{part.benchmark}", f"{top}/results/{system}/{part.benchmark}"
        for path, (mode, content) in part.code.items():
            entries.append(Entry(f"{place}/implementations/{implementation}/{path}", content, mode))
        if part.described is not None:
            entries.append(Entry(f"{place}/{system}/{system}_{implementation}.json", part.described))
        if (readme := f"{part.inside}README.md") in part.code:
            entries.append(Entry(f"{place}/{system}/README.md", part.code[readme][1]))
        for script in SCRIPTS:
            if f"{part.inside}{script}" in part.code:
                lines = "#!/usr/bin/env bash\n# Calls the script of the code that ran.\nset -euo pipefail\n"
                text = lines + part.call(f"../implementations/{implementation}/{part.inside}{script}")
                entries.append(Entry(f"{place}/{system}/{script}", text.encode(), 0o755))
        committee = part.folder / scaling.NAME
        if problem := scaling.factor(part.folder, None).problem:
            raise UserError(f"{committee}: {problem}; remove it, or write the committee's factor")
        if committee.is_file():
            entries.append(Entry(f"{results}/{scaling.NAME}", read_file(committee, MAX_JSON_BYTES)))
        for number, (run, digest) in enumerate(part.runs):
            name = run.path.name if digest else f"result_{number}.txt"
            entries.append(Entry(f"{results}/{name}", run.path, sha256=digest))
    return sorted(entries, key=lambda entry: entry.path)


def as_json(content: dict) -> bytes:
    """Returns the bytes of a JSON file; half of a surrogate pair is escaped."""
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode(errors="backslashreplace")


def real_folder(path: Path, fix: str = "") -> bool:
    """Whether a path is a folder; with `fix` one that is none raises UserError, as a link always does."""
    if path.is_symlink():
        raise UserError(f"{path}: {_LINK}; put the folder itself there")
    if fix and not path.is_dir():
        raise UserError(f"{path}: no such folder; {fix}")
    return path.is_dir()


def open_file(path: Path):
    """Opens a regular file for reading. Raises UserError for a link, anything special and what cannot be read."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        what = _LINK if path.is_symlink() else error.strerror
        raise UserError(f"{path}: {what}; put a readable file there") from None
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise UserError(f"{path}: is not a regular file; put the log itself there")
    return open(handle, "rb")


def digest_of(path: Path) -> str:
    """Returns the SHA-256 of a regular file."""
    with open_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_file(path: Path, limit: int) -> bytes:
    """Returns the content of a regular file. Raises UserError as `open_file`, or if it has more than `limit` bytes."""
    with open_file(path) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise UserError(f"{path}: more than {limit:,} bytes, which no run writes; restore it")
    return data


def write_package(
    target: Path, top: str, entries: list[Entry], force: bool, accept: Callable[[Path], bool]
) -> Path | None:
    """Writes `target`/`top`/..., `target`/`top`.tar and the manifest: either all of it or nothing.

    Writes everything into a folder beside the target, calls `accept` with that folder, and renames it only then. With
    `force` it replaces an earlier package of that name; it never replaces anything else.

    Returns: the target, or None if `accept` refused.
    Raises UserError if the target is in the way or cannot be written.
    """
    target = Path(os.path.abspath(target))
    _may_write(target, force)
    staging = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".partial", dir=target.parent))
        staging.chmod(0o755)
        sums = _write_tree(staging, entries)
        if not accept(staging / top):
            return None
        sums[f"{top}.tar"] = _write_tar(staging / f"{top}.tar", staging, entries)
        lines = "".join(f"{digest}  {path}\n" for path, digest in sorted(sums.items()))
        (staging / MANIFEST).write_text(lines, encoding="utf-8")
        _put_in_place(staging, target, force)
    except OSError as error:
        raise UserError(f"{target}: cannot write ({error.strerror}); give -o a place with room") from None
    finally:
        if staging is not None:
            shutil.rmtree(staging, ignore_errors=True)
    return target


def _may_write(target: Path, force: bool) -> None:
    if not os.path.lexists(target):
        return
    if not force:
        raise UserError(f"{target}: exists; name another folder with -o, or replace it with --force")
    if target.is_symlink() or not (target / MANIFEST).is_file():
        reason = "is not a package, so --force does not replace it"
        raise UserError(f"{target}: {reason}; name another folder with -o")


def _put_in_place(staging: Path, target: Path, force: bool) -> None:
    if not os.path.lexists(target):
        staging.rename(target)
        return
    _may_write(target, force)
    old = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".old", dir=target.parent))
    target.rename(old / target.name)
    try:
        staging.rename(target)
    except OSError:
        with suppress(OSError):
            (old / target.name).rename(target)
        raise
    finally:
        if os.path.lexists(target):
            shutil.rmtree(old, ignore_errors=True)


def _write_tree(root: Path, entries: list[Entry]) -> dict[str, str]:
    sums = {}
    for entry in entries:
        path = root / entry.path
        path.parent.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256()
        source = BytesIO(entry.content) if isinstance(entry.content, bytes) else open_file(entry.content)
        with source, path.open("xb") as file:
            while chunk := source.read(1 << 20):
                file.write(chunk)
                digest.update(chunk)
        if entry.sha256 not in ("", digest.hexdigest()):
            raise UserError(f"{entry.content}: was changed while it was packaged; package it again")
        path.chmod(entry.mode)
        sums[entry.path] = digest.hexdigest()
    return sums


def _write_tar(path: Path, root: Path, entries: list[Entry]) -> str:
    """Writes the entries in path order, without user names, ids or times of this machine; returns the digest."""
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        for entry in sorted(entries, key=lambda entry: entry.path):
            info = tarfile.TarInfo(entry.path)
            info.mode, info.mtime, info.size = entry.mode, _TIME, (root / entry.path).stat().st_size
            with (root / entry.path).open("rb") as file:
                tar.addfile(info, file if info.size else BytesIO())
    return digest_of(path)
