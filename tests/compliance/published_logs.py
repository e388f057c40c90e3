"""Finds the published logs of rounds v0.6, v0.7 and v6.0, which lie outside the project (TTT_SHARED)."""

import os
import tarfile
from functools import cache
from pathlib import Path
from tempfile import gettempdir

import pytest

ROUNDS = {"v0.6": "0.6.0", "v0.7": "0.7.0"}  # of whose logs tests take all
_PARTS = (*ROUNDS, "v6.0")


@cache
def folder() -> Path:
    """A folder with v0.6/, v0.7/ and v6.0/, unpacked once; skips the test where the archives are absent."""
    beside = Path(__file__).parents[2] / ".." / "shared"
    source = Path(os.environ.get("TTT_SHARED", beside)).resolve() / "data" / "published_logs"
    archives = {name: source / f"training_results_{name}_subset.tar.xz" for name in _PARTS}
    for archive in archives.values():
        if not archive.is_file():
            pytest.skip(f"{archive} is not here; set TTT_SHARED to the folder that has data/published_logs")
    sizes = "-".join(str(archive.stat().st_size) for archive in archives.values())
    target = Path(gettempdir()) / f"published-logs-{os.getuid()}-{sizes}"
    for name, archive in archives.items():
        if not (target / name).is_dir():
            part = target / f"{name}.{os.getpid()}"
            with tarfile.open(archive) as tar:
                tar.extractall(part, filter="data")
            part.rename(target / name)
    return target


def logs(name: str) -> list[Path]:
    """The logs of one round, sorted."""
    return sorted((folder() / name).glob("*/results/**/result_*"))
