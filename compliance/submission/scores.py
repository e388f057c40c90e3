"""Computes Olympic scores of result folders, and finds the published scores to compare them with."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import dataclass, replace
from functools import cache, reduce
from operator import add
from pathlib import Path
from statistics import fmean

from common.errors import UserError
from compliance.log.rules import metric
from compliance.submission.runs import Run, number, read_run
from compliance.submission.tree_files import kind_of

_RUNS = 5  # the number of runs where the benchmark's rules give none
_PUBLISHED = Path(__file__).parents[1] / "data" / "published_scores.csv"
_MAX_RUNS = 1000  # in one folder; more is not a result folder


def required_runs(benchmark: str, ruleset: str = "0.7.0") -> int:
    """How many runs make a score, from the benchmark's rule file: 5 or 10."""
    return metric(ruleset, benchmark).get("runs", _RUNS)


@dataclass(frozen=True)
class ScoreCard:
    """One folder of runs; `fastest` and `slowest` are the indices of the dropped ones."""

    path: Path
    benchmark: str
    org: str
    system: str
    ruleset: str
    runs: tuple[Run, ...]
    accelerators: int | None
    fastest: int | None
    slowest: int | None
    score: float | None
    why: str

    @property
    def minutes(self) -> list[float | None]:
        """Minutes of every run, in the order of the files."""
        return [run.minutes for run in self.runs]

    @property
    def dropped(self) -> list[int]:
        return [index for index in (self.fastest, self.slowest) if index is not None]

    @property
    def needed(self) -> int:
        return required_runs(self.benchmark, self.ruleset)

    @property
    def converged(self) -> int:
        return sum(run.complies for run in self.runs)

    @property
    def spread(self) -> float | None:
        """(slowest - fastest) / mean of the runs that comply; None with fewer than two."""
        times = [run.minutes for run in self.runs if run.complies and run.minutes is not None]
        return (max(times) - min(times)) / fmean(times) if len(times) > 1 and fmean(times) > 0 else None

    @property
    def epochs(self) -> float | None:
        """Mean epoch of the last evaluation over the runs that comply, as logged."""
        epochs = [run.epochs for run in self.runs if run.complies and run.epochs is not None]
        return fmean(epochs) if epochs else None

    @property
    def smoke(self) -> bool:
        return any(run.smoke for run in self.runs)


def score_directory(path: str | Path, ruleset: str | None = None) -> ScoreCard:
    """The score card of one folder of `result_*.txt` logs (or of one log).

    Olympic scoring: the fastest and the slowest run are dropped, the score is the mean of the rest, in
    minutes. One run that does not comply counts as the dropped slowest; with two or more there is no score.

    Raises UserError when there is no such folder or it holds no result log.
    """
    path = Path(path)
    files = result_files(path)
    folder = path if path.is_dir() else path.parent
    records = _records(folder)
    runs = tuple(_with_own_target(read_run(file, ruleset), records.get(file.name)) for file in files)
    benchmarks = {run.benchmark for run in runs if run.benchmark}
    benchmark = benchmarks.pop() if len(benchmarks) == 1 else folder.name
    fastest, slowest, score, why = _olympic(runs, benchmark, mixed=bool(benchmarks))
    system, org = folder.resolve().parent.name, str(runs[0].header.get("submission_org", ""))
    return ScoreCard(
        path,
        benchmark,
        org,
        system,
        runs[0].ruleset,
        runs,
        _accelerators(folder),
        fastest,
        slowest,
        score,
        why,
    )


def result_files(path: Path) -> list[Path]:
    """The result logs of a folder in the order of their numbers, or the one log that `path` is."""
    if path.is_file():
        return [path]
    try:
        found = [
            file
            for file in path.iterdir()
            if re.fullmatch(r"result_.*\.txt", file.name) and kind_of(file) == "file"
        ]
    except OSError as error:
        raise UserError(f"{path}: cannot read ({error.strerror}); name a results folder or a log") from None
    if not found:
        raise UserError(f"{path}: no result_*.txt in it; name a folder of result logs, or a log")
    if len(found) > _MAX_RUNS:
        raise UserError(f"{path}: {len(found)} result logs; a result folder holds 5 or 10")
    return sorted(
        found, key=lambda file: [int(d) if d.isdigit() else d for d in re.split(r"(\d+)", file.name)]
    )


def result_folders(path: str | Path) -> list[Path]:
    """Every folder at or below `path` that holds result logs, sorted; links to folders are not followed."""
    path = Path(path)
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise UserError(
            f"{path}: no such file or folder; name a result log, a results folder or a submission tree"
        )
    found = sorted({log.parent for log in path.rglob("result_*.txt") if kind_of(log) == "file"})
    if not found:
        raise UserError(f"{path}: no result_*.txt below it; name a folder of result logs, or a log")
    return found


def _olympic(
    runs: tuple[Run, ...], benchmark: str, mixed: bool
) -> tuple[int | None, int | None, float | None, str]:
    """(index of the fastest, of the slowest, score, the reason where there is no score)."""
    if mixed:
        return None, None, None, "the logs are of different benchmarks"
    needed = required_runs(benchmark, runs[0].ruleset)
    if len(runs) != needed:
        return None, None, None, f"a {benchmark} score takes {needed} runs, here are {len(runs)}"
    untimed = sum(run.minutes is None for run in runs)
    if untimed > 1:
        return None, None, None, f"{untimed} runs have no time from run_start to run_stop that can be read"
    failed = [index for index, run in enumerate(runs) if not run.complies]
    if len(failed) > 1:
        return None, None, None, f"{len(failed)} runs did not reach the target; at most one may fail"
    ranked = sorted((run.minutes, index) for index, run in enumerate(runs) if index not in failed)
    fastest = ranked[0][1]
    slowest = failed[0] if failed else ranked[-1][1]
    kept = [minutes for minutes, index in ranked if index not in (fastest, slowest)]
    # Added one by one, as the published scores were: two of them lie half way between fourth decimals, and
    # fmean, or sum from Python 3.12 on, rounds them the other way.
    return fastest, slowest, reduce(add, kept) / len(kept), ""


def _accelerators(folder: Path) -> int | None:
    """The count in <org>/systems/<system>.json of a submission tree, or in the run.json beside the logs."""
    folder = folder.resolve()
    described = (
        _json(folder.parents[2] / "systems" / f"{folder.parent.name}.json") if len(folder.parents) > 2 else {}
    )
    if not described:
        first = next(iter(_records(folder).values()), {})
        described = first.get("system_description", {}) if isinstance(first, dict) else {}
    try:
        return int(described["number_of_nodes"]) * int(described["accelerators_per_node"])
    except (KeyError, TypeError, ValueError):
        return None


def _records(folder: Path) -> dict:
    """The records of run.json by log, where this project ran."""
    runs = _json(folder / "run.json").get("runs")
    return runs if isinstance(runs, dict) else {}


def _with_own_target(run: Run, record: object) -> Run:
    """Gives a smoke run, or a run of a benchmark without rules, the target in its run.json."""
    target = number(record.get("quality_target")) if isinstance(record, dict) else None
    if target is None or set(run.target) - {""} or not (run.smoke or not run.target):
        return run
    return replace(run, target={"": target})


def _json(path: Path) -> dict:
    try:
        value = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


# ------------------------------------------------------------------------------------------- published scores


@dataclass(frozen=True, slots=True)
class Published:
    """One row of data/published_scores.csv."""

    round: str
    org: str
    system: str
    benchmark: str
    accelerators: int
    minutes: float
    epochs: float | None


@cache
def published() -> tuple[Published, ...]:
    """The closed-division scores of Google and NVIDIA in rounds v0.6 and v0.7 (source: data/README.md)."""
    with _PUBLISHED.open(encoding="utf-8", newline="") as file:
        return tuple(
            Published(
                row["round"], row["org"], row["system"], row["benchmark"], int(row["n_accelerators"]),
                float(row["score_minutes"]), number(float(row["epochs_to_converge"])),
            )
            for row in csv.DictReader(file)
        )  # fmt: skip


def beside(card: ScoreCard) -> tuple[int | None, list[Published]]:
    """(accelerator count, published scores of the benchmark at that count, fastest first).

    The card's own row is left out. Without a count in the system's description, the published row of the
    same name gives it; when nobody published the benchmark at that count, the nearest count is taken.
    """
    rows = [row for row in published() if row.benchmark == card.benchmark]
    own = [row for row in rows if row.system == card.system and row.org.lower() == card.org.lower()]
    count = own[0].accelerators if card.accelerators is None and own else card.accelerators
    if not count or not rows:
        return count, []
    near = min({row.accelerators for row in rows}, key=lambda n: (abs(n - count), n))
    others = [row for row in rows if row.accelerators == near and row not in own]
    return count, sorted(others, key=lambda row: row.minutes)
