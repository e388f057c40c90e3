"""Measures a card in a few minutes: equality, steps, peers, whole runs; docs/gpu.md says more.

    python -m lab.bench.gpu EXPORTS --minutes=12 --out=RESULT.json [--only PATTERN ...]

EXPORTS is the folder, or exports.tar.xz, that lab.bench.gpu.prepare wrote. Needs numpy, jax and a jax device. Measures
PyTorch and flax if they are installed, and whole runs if TensorFlow is. It writes the file after every row; running the
same command again resumes.
"""

import argparse
import fnmatch
import importlib.util
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

from common import untrusted
from common.errors import UserError, answering
from lab.bench.gpu import child
from lab.bench.gpu.child import Row
from lab.bench.gpu.plan import Plan, Stage
from lab.bench.gpu.report import Report, line, with_floor


def stages(plan: Plan) -> Iterator[Stage]:
    """Yields all stages in order."""
    yield plan.ceilings()
    yield plan.llama()
    yield plan.compiles_and_checks()
    yield plan.steps()
    installed = {name for name in ("torch", "flax", "tensorflow") if importlib.util.find_spec(name)}
    if "torch" in installed:
        yield plan.eager()
    for stage in plan.compiled_peers():
        if stage.rows and stage.rows[0].job["job"].partition("_")[0] in installed:
            yield stage
    if "tensorflow" in installed:
        yield from plan.training()


def measured(stage: Stage, report: Report, only: list[str]) -> list[Row]:
    """Returns the wanted rows of the stage that have no figures yet; rows that failed before come last."""
    jobs = [
        row for row in stage.rows if not only or any(fnmatch.fnmatch(row.name, pattern) for pattern in only)
    ]
    return sorted((row for row in jobs if not report.done(row.name)), key=lambda row: row.name in report.rows)


def measure(plan: Plan, report: Report, deadline: float, only: list[str]) -> None:
    """Runs the stages until the deadline (of time.monotonic)."""

    def done(row: Row, result: dict) -> None:
        if "cut" in result:
            return
        more = {"flags": row.flags} if row.flags else {}
        report.add(row.name, {**result, **more})
        ceilings = report.rows.get("ceilings", {})
        remaining = f"[{max(0.0, deadline - time.monotonic()):4.0f} s left]"
        print(remaining, line(row.name, with_floor(report.rows[row.name], ceilings)), flush=True)

    left_out = []
    for stage in stages(plan):
        rows = measured(stage, report, only)
        if rows and stage.title:
            print(f"{stage.title}:", flush=True)
        child.run(rows, stage.at_a_time, deadline, done)
        left_out += [row.name for row in rows if row.name not in report.rows]
    report.not_run = left_out
    report.write()
    if left_out:
        print(f"not run, for want of time: {', '.join(left_out)}")


def unpacked(exports: Path, scratch: Path) -> Path:
    """Returns the folder of exports; unpacks an archive into `scratch`.

    Raises UserError if it contains no export.
    """
    if exports.is_file():
        folder = scratch / "exports"
        try:
            with tarfile.open(exports) as packed:
                untrusted.extract(packed, folder)
        except (OSError, tarfile.TarError) as error:
            raise UserError(
                f"{exports}: {error}; make it anew with python -m lab.bench.gpu.prepare"
            ) from error
        exports = folder
    if not any(exports.glob("*/*/manifest.json")):
        raise UserError(
            f"{exports}: no export in full/ or small/; make them with python -m lab.bench.gpu.prepare"
        )
    return exports


@answering()
def run() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m lab.bench.gpu", description=__doc__.splitlines()[0], allow_abbrev=False
    )
    parser.add_argument("exports", type=Path, help="folder or archive that lab.bench.gpu.prepare wrote")
    parser.add_argument("--minutes", type=float, default=12.0, help="that all of it may take")
    parser.add_argument(
        "--out", type=Path, default=Path("card.json"), help="file of results; goes on with it"
    )
    parser.add_argument(
        "--scratch",
        type=Path,
        default=Path("build/gpu"),
        help="compiled programs and records, to be used again",
    )
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="PATTERN", help="rows, as step/* check/resnet"
    )
    parser.add_argument("--quick", action="store_true", help="few steps, to see that everything runs")
    options = parser.parse_args()
    deadline = time.monotonic() + 60 * options.minutes
    scratch = options.scratch.absolute()
    for folder in (scratch, options.out.absolute().parent):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{folder}: {error.strerror}; name another folder") from error
    report = Report(options.out)
    plan = Plan(unpacked(options.exports.absolute(), scratch), scratch, options.quick)
    measure(plan, report, deadline, options.only)
    return int(any("error" in row for row in report.rows.values()))


if __name__ == "__main__":
    sys.exit(run())
