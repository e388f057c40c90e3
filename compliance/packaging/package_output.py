"""Writes a package: all files, a reproducible tar, and a manifest with the SHA-256 of every file."""

import hashlib
import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from common.errors import UserError
from compliance.packaging.package_inputs import open_file

MANIFEST = "SHA256SUMS"
_TIME = (
    315_532_800  # 1980-01-01: a fixed time, so that equal files give equal tars; late enough for every tool
)


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
        raise UserError(
            f"{target}: is not a package, so --force does not replace it; name another folder with -o"
        )


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
        with path.open("xb") as file:
            if isinstance(entry.content, bytes):
                file.write(entry.content)
                digest.update(entry.content)
            else:
                with open_file(entry.content) as source:
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
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
