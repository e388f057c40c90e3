"""Mutates checkpoints and exports, gives each to `timetotrain predict` or `export`, and watches files, imports, memory.

`tests/common/export/test_hostile.py` tries a few; with TTT_HOSTILE_CASES=2000 it tries as many. Everything runs in one
process, so that TensorFlow is imported only once.
"""

import contextlib
import io
import os
import random
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lab.bench.harness import ROOT, hostile, samples

MOST_BYTES = 1 << 30  # Limit of the rise of resident memory.
_FINE = (str(ROOT), sys.prefix, sys.base_prefix)


def run(number: int, seed: int, sound: tuple[Path, Path], place: Path) -> dict[str, Any]:
    """Makes and tries one case in this process, in an empty folder; returns the observations.

    Even numbers are checkpoints, odd ones exports; `sound` is a valid checkpoint and its export.
    """
    rng = random.Random(f"{seed} {number}")
    verb, model = "predict", place / "model"
    if number % 2:
        kind = f"export: {hostile.mutate_export(sound[1], model, rng)}"
    else:
        model = place / "checkpoint_00000001.npz"
        kind = f"checkpoint: {hostile.mutate_checkpoint(sound[0], model, rng)}"
        verb = rng.choice(("predict", "export"))
    return {"number": number, "kind": kind, "verb": verb, **attempt(verb, model, place)}


def attempt(verb: str, model: Path, place: Path, flags: Sequence[str] = ()) -> dict[str, Any]:
    """Passes a model to `predict` or `export` in the folder `place`; returns the observations."""
    from timetotrain import cli

    here = place / "here"
    here.mkdir()
    marker = place / "imported"
    (here / f"{hostile.EVIL}.py").write_text(f"open({str(marker)!r}, 'w').close()\n")
    picture = samples.digit(place / "digit.png")
    command = [verb, str(model), *([str(picture)] if verb == "predict" else [str(here / "out")]), *flags]
    out, err = io.StringIO(), io.StringIO()
    before, modules = _files(place), set(sys.modules)
    with (
        _in(here),
        contextlib.redirect_stdout(_Text(out)),
        contextlib.redirect_stderr(_Text(err)),
        _peak() as peak,
    ):
        try:
            status: int | None = cli.main(command)
        except SystemExit as error:
            status = int(error.code or 0)
        except BaseException:
            traceback.print_exc()
            status = None
    errors = [line for line in err.getvalue().splitlines() if line.strip()]
    changed = {p for p in _files(place) ^ before if not str(p[0]).startswith("here/out")}
    return {
        "status": status,
        "error": errors[-1] if status != 0 and errors else "",
        "traceback": status is None or (status != 0 and len(errors) != 1),
        "wrote": sorted(str(path) for path, *_ in changed),
        "imported": sorted(_foreign(set(sys.modules) - modules)) + ["marker"] * marker.exists(),
        "bytes": peak[0],
    }


class _Text(io.TextIOWrapper):
    """A text stream over another stream, with the `reconfigure` that a verb calls."""

    def __init__(self, out: io.StringIO):
        super().__init__(io.BytesIO())
        self._out = out

    def write(self, text: str) -> int:
        return self._out.write(text)


@contextlib.contextmanager
def _in(folder: Path) -> Iterator[None]:
    before, path = os.getcwd(), list(sys.path)
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
        sys.path[:] = path


@contextlib.contextmanager
def _peak() -> Iterator[list[int]]:
    """Yields a list that gets how far resident memory rises in the block, in bytes."""
    rise, before = [0], _memory("VmRSS")
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # Resets the peak.
    yield rise
    rise[0] = _memory("VmHWM") - before


def _memory(key: str) -> int:
    """Returns a size from /proc/self/status, such as VmRSS, in bytes."""
    return int(Path("/proc/self/status").read_text().partition(f"{key}:")[2].split()[0]) * 1024


def _files(place: Path) -> set[tuple]:
    """Returns names, sizes and times of the files in the folder and of those beside it."""
    found = {(path.relative_to(place), *_state(path)) for path in place.rglob("*")}
    beside = [path for folder in (place.parent, Path("/tmp")) for path in folder.glob("*escaped*")]
    return found | {(path, *_state(path)) for path in beside}


def _state(path: Path) -> tuple[int, int]:
    with contextlib.suppress(OSError):
        stat = path.lstat()
        return (0, 0) if path.is_dir() else (stat.st_size, stat.st_mtime_ns)
    return (-1, -1)


def _foreign(names: set[str]) -> set[str]:
    """Returns the modules that neither belong to a package of this environment nor were written by TensorFlow."""
    foreign = set()
    for name in (name for name in names if not name.startswith("__autograph_generated_file")):
        file = getattr(sys.modules.get(name), "__file__", None)
        if hostile.EVIL in name or (file and not str(file).startswith(_FINE)):
            foreign.add(name)
    return foreign


def broken(case: dict[str, Any]) -> list[str]:
    """Returns what a case did that it must not do."""
    promises = {
        "a traceback": case["traceback"],
        "wrote outside": case["wrote"],
        "imported": case["imported"],
        "over 1 GB": case["bytes"] >= MOST_BYTES,
    }
    return [name for name, happened in promises.items() if happened]
