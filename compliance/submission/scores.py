"""Computes Olympic scores of result folders."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from pathlib import Path
from statistics import fmean

from common.errors import UserError
from compliance.findings import ERROR
from compliance.hints import listed
from compliance.log.check_log import LogResult, check_logs
from compliance.log.logs import number
from compliance.submission.rounds import may_fail, required_runs
from compliance.submission.runs import Run, read_run
from compliance.submission.scaling import factor
from compliance.submission.tree_files import by_number, kind_of
from compliance.submission.tree_system import accelerators, load_or_empty

_MAX_JSON_BYTES = 64 << 20  # fits the run.json of a thousand runs
_SHOWN = 3  # rules that a reason names
_MAX_RUNS = 1000  # a folder with more is not a result folder


@dataclass(frozen=True)
class ScoreCard:
    """One folder of runs.

    `left_out` holds the indices of the runs that the olympic mean drops: first the fastest runs, then the slowest runs
    or runs that count for no score. `score` is in minutes and includes the factor `scaling`; it is None if there is no
    score, and `why` gives the reason. `counts` says for each run whether it counts.
    """

    path: Path
    benchmark: str
    org: str
    system: str
    ruleset: str
    runs: tuple[Run, ...]
    accelerators: int | None
    score: float | None
    why: str
    left_out: tuple[int, ...] = ()
    counts: tuple[bool, ...] = ()
    scaling: float = 1.0

    @property
    def minutes(self) -> list[float | None]:
        """Returns the minutes of every run, in file order."""
        return [run.minutes for run in self.runs]

    @property
    def needed(self) -> int:
        return required_runs(self.benchmark, self.ruleset)

    @property
    def converged(self) -> int:
        return sum(self.counts)

    @property
    def counting_runs(self) -> list[Run]:
        """Returns the runs that count for a score, before the olympic mean drops some."""
        return [run for run, counts in zip(self.runs, self.counts) if counts]

    @property
    def spread(self) -> float | None:
        """Returns (slowest - fastest) / mean over the runs that comply; None with fewer than two."""
        times = [run.minutes for run in self.counting_runs if run.minutes is not None]
        return (max(times) - min(times)) / fmean(times) if len(times) > 1 and fmean(times) > 0 else None

    @property
    def epochs(self) -> float | None:
        """Returns the mean epoch of the last evaluation over the runs that comply, as logged."""
        epochs = [run.epochs for run in self.counting_runs if run.epochs is not None]
        return fmean(epochs) if epochs else None

    @property
    def smoke(self) -> bool:
        return any(run.smoke for run in self.runs)


def score_directory(
    path: str | Path,
    ruleset: str | None = None,
    results: Sequence[LogResult] | None = None,
    scaling: float | None = None,
) -> ScoreCard:
    """Computes the score card of one folder of `result_*.txt` logs (or of one log).

    Olympic scoring drops the fastest and the slowest run (four each for unet3d); the score is the mean of the rest, in
    minutes. A run that does not comply, or whose log breaks a rule, is dropped as a slowest run. If there are more such
    runs than may be dropped, there is no score. (Round v0.6 has no such rule for logs: its published ones break many.)

    Args:
      path: the folder, or one log.
      ruleset: the round; None: find it from each log.
      results: the results of checking the logs; None: check them here.
      scaling: the factor of the score; None: the factor in the folder's scaling.json, or 1.

    Raises UserError if the folder does not exist or holds no result log.
    """
    path = Path(path)
    files = result_files(path)
    folder = path if path.is_dir() else path.parent
    records = _records(folder)
    if results is None:
        results = check_logs([str(file) for file in files], ruleset)
    checked = {os.path.abspath(one.path): one for one in results}
    of_files = [checked.get(os.path.abspath(file)) for file in files]
    runs = tuple(_run(file, one, ruleset, records.get(file.name)) for file, one in zip(files, of_files))
    counts = tuple(_counts(run, one) for run, one in zip(runs, of_files))
    benchmarks = {run.benchmark for run in runs if run.benchmark}
    benchmark = benchmarks.pop() if len(benchmarks) == 1 else folder.name
    scaling = factor(folder, None).value if scaling is None else scaling
    whys = [_why(run, one) for run, one in zip(runs, of_files)]
    left_out, score, why = _olympic(runs, counts, benchmark, whys, mixed=bool(benchmarks))
    system, org = folder.resolve().parent.name, str(runs[0].header.get("submission_org", ""))
    return ScoreCard(
        path, benchmark, org, system, runs[0].ruleset, runs, _accelerators(folder),
        None if score is None else score * scaling, why, left_out, counts, scaling,
    )  # fmt: skip


def _counts(run: Run, result: LogResult | None) -> bool:
    """Whether a run counts for a score."""
    if run.ruleset == "0.6.0" or result is None:
        return run.complies
    if run.ruleset == "0.7.0":
        return run.complies and (result.passes or run.smoke)
    return result.passes and run.minutes is not None and not run.header.get("resumed_from_step")


def _why(run: Run, result: LogResult | None) -> str:
    """Returns why a run does not count for a score, in a few words: the first rule that its log breaks."""
    broken = [one.rule for one in (result.findings if result else ()) if one.severity == ERROR]
    if broken:
        return broken[0]
    if result and any(one.rule == "no_mlperf_result" for one in result.findings):
        return "no quality target"
    if run.minutes is None or run.header.get("resumed_from_step"):
        return "no time to train"
    return f"status {run.status[:20] or 'missing'}"


def result_files(path: Path) -> list[Path]:
    """Returns a folder's result logs in numeric order, or a log itself. Raises UserError for none or over 1,000."""
    if path.is_file():
        return [path]
    try:
        matches = (file for file in path.iterdir() if re.fullmatch(r"result_.*\.txt", file.name))
        files = [file for file in matches if kind_of(file) == "file"]
    except OSError as error:
        raise UserError(f"{path}: cannot read ({error.strerror}); name a results folder or a log") from None
    if not files:
        raise UserError(f"{path}: no result_*.txt in it; name a folder of result logs, or a log")
    if len(files) > _MAX_RUNS:
        raise UserError(f"{path}: {len(files)} result logs; a result folder holds 3 to 40")
    return sorted(files, key=by_number)


def result_folders(path: str | Path) -> list[Path]:
    """Returns every folder at or below `path` that holds result logs, sorted; does not follow links to folders.

    A log is returned itself. Raises UserError if `path` does not exist, or nothing below it is a result log.
    """
    path = Path(path)
    if path.is_file():
        return [path]
    if not path.is_dir():
        fix = "name a result log, a results folder or a submission tree"
        raise UserError(f"{path}: no such file or folder; {fix}")
    folders = sorted({log.parent for log in path.rglob("result_*.txt") if kind_of(log) == "file"})
    if not folders:
        raise UserError(f"{path}: no result_*.txt below it; name a folder of result logs, or a log")
    return folders


def _olympic(
    runs: tuple[Run, ...], counts: tuple[bool, ...], benchmark: str, whys: Sequence[str], mixed: bool
) -> tuple[tuple[int, ...], float | None, str]:
    """Returns (indices of the dropped runs, score or None, why there is no score)."""
    if mixed:
        return (), None, "the logs are of different benchmarks"
    needed, drop = required_runs(benchmark, runs[0].ruleset), may_fail(benchmark)
    if len(runs) != needed:
        verb = "is" if len(runs) == 1 else "are"
        return (), None, f"a {benchmark} score takes {needed} runs, here {verb} {len(runs)}"
    untimed = sum(run.minutes is None for run in runs)
    if untimed > drop:
        return (), None, f"{untimed} runs have no time from run_start to run_stop that can be read"
    failed = [index for index, fine in enumerate(counts) if not fine]
    if len(failed) > drop:
        most = "one" if drop == 1 else drop
        reasons = dict.fromkeys(whys[index] for index in failed)
        return (), None, f"{len(failed)} runs do not count, at most {most} may: {listed([*reasons], _SHOWN)}"
    ranked = sorted({*range(len(runs))} - {*failed}, key=lambda index: (runs[index].minutes, index))
    slow = len(ranked) - (drop - len(failed))
    left_out = (*ranked[:drop], *ranked[slow:], *failed)
    minutes = [runs[index].minutes for index in ranked[drop:slow]]
    # Added one by one, as the published scores were: two of them lie halfway between fourth decimals, and
    # fmean, or sum from Python 3.12 on, rounds them the other way.
    return left_out, reduce(add, minutes) / len(minutes), ""


def _accelerators(folder: Path) -> int | None:
    """Returns the count in <org>/systems/<system>.json of a submission tree, or in the run.json beside the logs."""
    folder = folder.resolve()
    place = Path(*folder.parts[:-3], "systems", f"{folder.parent.name}.json")
    if len(folder.parents) > 2 and (description := load_or_empty(place, _MAX_JSON_BYTES)):
        return accelerators(description)
    first = next(iter(_records(folder).values()), {})
    return accelerators(first.get("system_description") if isinstance(first, dict) else {})


def _records(folder: Path) -> dict:
    """Returns the records of run.json by log; only runs of this project have one."""
    runs = load_or_empty(folder / "run.json", _MAX_JSON_BYTES).get("runs")
    return runs if isinstance(runs, dict) else {}


def _run(file: Path, result: LogResult | None, ruleset: str | None, record: object) -> Run:
    """Returns a log's run; a smoke run, or one of a benchmark without rules, has the target from its run.json."""
    ruleset = ruleset or (result.ruleset if result else None) or None
    read = result.run if result else None
    run = read if read and read.ruleset == ruleset else read_run(file, ruleset)
    target = number(record.get("quality_target")) if isinstance(record, dict) else None
    if target is None or set(run.target) - {""} or not (run.smoke or not run.target):
        return run
    return replace(run, target={"": target})
