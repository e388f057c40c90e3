"""Reads power logs and computes a run's energy: as the written rules say, and as the stock tool does.

The rules: mlcommons/training_policies, power_measurement.adoc, "Scoring". The stock tool: mlperf_logging 4.1.68,
result_summarizer/result_summarizer.py, `_compute_power_node`, `_compute_power_sw`, `_index_olympic_average`.
"""

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from common.errors import UserError
from compliance.log.lines import TOKEN, token_lines
from compliance.log.logs import BadLine, number, parse_line
from compliance.submission.runs import Run
from compliance.submission.tree_files import plain_files

_READING = re.compile(rb'"time_ms":\s*(\d+),.*"key":\s*"power_reading",\s*"value":\s*([-+.\deE]+)\s*[,}]')

# Beside a log: the readings of a round, and those that `run --power` takes of its own host, which are informative.
MEASURED, IN_BAND = "power", "power_in_band"
MOST_READINGS = 2_000_000  # of a log: three weeks at one a second
_LONGEST_QUICK = 2000
_MOST = 1e15  # above any time in ms and any power in watts; sums of products of two are floats


@dataclass
class PowerLog:
    """One node's or switch's log. Times in milliseconds since the epoch, power in watts.

    `readings` is sorted by time, equal times as in the file; `at_stop` of those at the time of `stop` stand before its
    line. `estimate` is a switch's estimated power. `bad` counts records that cannot be read.
    """

    path: Path
    switch: bool
    start: float | None = None
    stop: float | None = None
    readings: list[tuple[float, float]] = field(default_factory=list)
    efficiency: float | None = None
    estimate: float | None = None
    bad: int = 0
    at_stop: int = 0

    @property
    def factor(self) -> float:
        """Returns the efficiency of the conversion from AC to DC; 1 if none is logged."""
        return 1.0 if self.efficiency is None else self.efficiency


def read(path: Path) -> PowerLog:
    """Reads one power log.

    Raises UserError: the file cannot be read, or has more than `MOST_READINGS` readings.
    """
    before_stop = 0
    log = PowerLog(path, path.name.startswith("sw"))
    for place, line in token_lines(path):
        if isinstance(line, int):
            log.bad += 1
            continue
        if len(log.readings) > MOST_READINGS:
            raise UserError(f"{path}: more than {MOST_READINGS:,} readings; give one a second")
        # The search takes quadratic time in a long line.
        if len(line) < _LONGEST_QUICK and (quick := _READING.search(line)):
            try:
                time, watts = _plausible(float(quick[1])), _plausible(float(quick[2]))
            except ValueError:
                time = watts = None
            if time is not None and watts is not None:
                log.readings.append((time, watts))
                continue
        record = parse_line(line[line.rfind(TOKEN) :].decode("utf-8", "replace"), place)
        if isinstance(record, BadLine):
            log.bad += 1
        else:
            _take(log, record.key, _plausible(number(record.time_ms)), _plausible(number(record.value)))
            if record.key == "power_measurement_stop":
                before_stop = len(log.readings)
    log.at_stop = sum(time == log.stop for time, _ in log.readings[:before_stop])
    log.readings.sort(key=operator.itemgetter(0))
    return log


def _plausible(value: float | None) -> float | None:
    return value if value is not None and -_MOST < value < _MOST else None


def _take(log: PowerLog, key: str, time: float | None, value: float | None) -> None:
    if key == "power_measurement_start":
        log.start = time
    elif key == "power_measurement_stop":
        log.stop = time
    elif key == "conversion_eff":
        log.efficiency = value
    elif key == "interconnect_power_est" and log.estimate is None:
        log.estimate = value
    elif key == "power_reading":
        if time is None or value is None:
            log.bad += 1
        else:
            log.readings.append((time, value))


def energy(log: PowerLog, start: float, stop: float) -> float | None:
    """Returns the joules of a run from `start` to `stop` (ms) by the rules; None without a reading that covers it.

    Each reading counts for the time since the previous one, as far as it lies in the run. A component whose power is
    estimated counts its estimate for the whole run.
    """
    seconds = (stop - start) / 1000
    if log.switch and log.estimate is not None:
        return log.factor * log.estimate * seconds
    before = [log.start] if log.start is not None else [log.readings[0][0]] if log.readings else []
    times = [*before, *(time for time, _ in log.readings)]
    joules, covered = 0.0, 0.0
    for previous, (time, watts) in zip(times, log.readings):
        part = (min(time, stop) - max(previous, start)) / 1000
        if part > 0:
            joules, covered = joules + watts * part, covered + part
    return log.factor * joules if covered > 0 else None


def stock_energy(log: PowerLog, milliseconds: float) -> float | None:
    """Returns the joules that the stock summarizer computes for a run of this length; None where it raises an error.

    It takes the mean over the whole measurement, idle parts included, times the length of the run.
    """
    if log.switch:
        return log.factor * (log.estimate or 0.0) * milliseconds / 1000
    if log.start is None:
        return None
    counted = [(time, watts) for time, watts in log.readings if time >= log.start]
    if log.stop is not None:
        last = [pair for pair in counted if pair[0] == log.stop][: log.at_stop]
        counted = [pair for pair in counted if pair[0] < log.stop] + last
    joules, previous = 0.0, log.start
    for time, watts in counted:
        joules, previous = joules + watts * (time - previous), time
    length = (log.stop if log.stop is not None else previous) - log.start
    return log.factor * joules * milliseconds / length / 1000 if length > 0 else None


def olympic(joules: Sequence[float | None], left_out: Sequence[int]) -> float | None:
    """Returns the mean energy of the runs that the score counts; None if one of them has none.

    power_measurement.adoc, "Scoring": "choose the same runs as the performance score's Olympic scoring".
    """
    counted = [one for index, one in enumerate(joules) if index not in left_out]
    return None if not counted or None in counted else fmean(counted)


@dataclass(frozen=True)
class RunPower:
    """The power logs of one run; `log` is the run's own log."""

    run: Run
    logs: tuple[PowerLog, ...]

    @property
    def nodes(self) -> list[PowerLog]:
        return [log for log in self.logs if not log.switch]

    @property
    def span(self) -> tuple[float, float] | None:
        """Returns (run_start, run_stop); None for a run without them."""
        return None if self.run.minutes is None else (self.run.run_start, self.run.run_stop)

    def during(self, log: PowerLog) -> list[tuple[float, float]]:
        """Returns the readings of a log in the span of the run, which has one."""
        return [one for one in log.readings if self.span[0] <= one[0] <= self.span[1]]

    def joules(self) -> float | None:
        """Returns the run's energy by the rules; None if a component's is unknown."""
        return self._total(energy)

    def stock_joules(self) -> float | None:
        """Returns the run's energy as the stock tool computes it; None where it raises an error."""
        return self._total(lambda log, start, stop: stock_energy(log, stop - start))

    def _total(self, of_log: Callable[[PowerLog, float, float], float | None]) -> float | None:
        if self.span is None or not self.nodes:
            return None
        parts = [of_log(log, *self.span) for log in self.logs]
        return None if None in parts else sum(parts)


def kind(folder: Path) -> str:
    """Returns the name of the folder with a folder's power logs, MEASURED before IN_BAND; "" without one."""
    return next((name for name in (MEASURED, IN_BAND) if (folder / name).is_dir()), "")


def of_run(run: Run, folder: Path) -> RunPower:
    """Reads the power logs of a run, `power/<name of its log>/node_<j>.txt` and `sw_<k>.txt`.

    Links, pipes and devices among them are left out.

    Raises UserError: a file cannot be read.
    """
    place = folder / (kind(folder) or MEASURED) / run.path.stem
    if place.is_symlink() or place.parent.is_symlink():
        return RunPower(run, ())
    names = plain_files(place, "node_*.txt") + plain_files(place, "sw_*.txt")
    return RunPower(run, tuple(read(path) for path in names))
