"""Checks the power logs of a folder of runs against the written rules, and their names as the stock tool does.

The rules: mlcommons/training_policies, power_measurement.adoc, "Requirements". The names: mlperf_logging,
package_checker/power_checker.py: it asks for no rate, no coverage and no plausible reading.
"""

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from statistics import fmean

from common.errors import UserError
from compliance.findings import ADVICE, Finding, finding
from compliance.power import power_logs
from compliance.power.power_logs import PowerLog, RunPower
from compliance.submission import tree_system
from compliance.submission.runs import Run

# "At least once every second": below this rate (Hz) it is advice. Published logs with whole seconds reach 0.95.
_LEAST_RATE = 0.9
_LONGEST_GAP = 3.0  # seconds between two readings of a run
_MOST_UNCOVERED = 2.5  # seconds of a run before the first reading or behind the last one
_LEAST_READINGS = 60  # "Measure max(a run, 60 power samples)"
# Watts of a node for each accelerator: from a small idle card to twice the largest of 2026 (GB300, 1,400 W) and its
# host.
_LEAST_WATTS, _MOST_WATTS = 30.0, 3000.0
_TOLD_WATTS = re.compile(r"(\d{2,4})\s*W\b")
_LEAST_OF_TOLD, _MOST_OF_TOLD = 0.1, 2.5
_DIFFER = 0.02  # between the energies of rules and stock tool


def bad_names(folder: Path, logs: list[str]) -> list[str]:
    """Returns the logs whose power files the stock checker refuses: missing, misnumbered, or of another number.

    package_checker/power_checker.py, `check_power`: files `node_<j>` and `sw_<k>` with j and k below their number, and
    as many of each as most runs have.
    """
    bad: set[str] = set()
    counts: dict[str, tuple[int, int]] = {}
    for log in logs:
        place = folder / "power" / Path(log).stem
        try:
            names = os.listdir(place)
        except OSError:
            bad.add(log)
            continue
        numbers = {name: os.path.splitext(name)[0].rpartition("_")[2] for name in names}
        groups = [[text for name, text in numbers.items() if name.startswith(one)] for one in ("node", "sw")]
        counts[log] = len(groups[0]), len(groups[1])
        if any(not text.isdecimal() or int(text) >= len(group) for group in groups for text in group):
            bad.add(log)
    for part in (0, 1):
        usual = Counter(count[part] for count in counts.values()).most_common(1)
        bad |= {log for log, count in counts.items() if count[part] != usual[0][0]}
    return [log for log in logs if log in bad]


def check(folder: Path, runs: Sequence[Run], description: dict | None) -> Iterator[Finding]:
    """Yields advice about the power logs of a folder of runs, one finding of each kind.

    Args:
      folder: `results/<system>/<benchmark>/`, with a folder `power/`.
      runs: its runs.
      description: the system's description; None without a usable one.
    """
    powers, problems = [], []
    for run in runs:
        try:
            powers.append(power_logs.of_run(run, folder))
        except UserError as error:
            problems.append(str(error))
    kinds: list[tuple[str, str, Callable[[RunPower], Iterable[str]]]] = [
        ("power.clock", "readings at the time of the run", _clock),
        ("power.rate", "a reading each second, evenly, in the timed part of a run", _rate),
        ("power.coverage", "readings from run_start to run_stop", _coverage),
        ("power.few", f"at least {_LEAST_READINGS} readings of a run", lambda run: (
            f"{len(log.readings)} readings of {log.path.stem}"
            for log in _timed(run) if len(log.readings) < _LEAST_READINGS
        )),
        ("power.copies", "readings of its own for each node", _copies),
        ("power.efficiency", "an efficiency above 0 and at most 1", lambda run: (
            f"conversion_eff {log.efficiency:g} of {log.path.stem}"
            for log in run.logs if log.efficiency is not None and not 0 < log.efficiency <= 1
        )),
        ("power.start", "power_measurement_start before, power_measurement_stop behind the readings", _start),
        ("power.watts", "watts that such a system takes", lambda run: _watts(run, description)),
        ("power.nodes", "a log of every node", lambda run: _nodes(run, description)),
        ("power.energy", "one energy", _energy),
    ]  # fmt: skip
    for rule, expected, says in kinds:
        firsts = ((next(iter(says(run)), None), run.run.path.stem) for run in powers if run.logs)
        if remarks := [f"{text} in {name}" for text, name in firsts if text]:
            more = f" and {len(remarks) - 2} more runs" if len(remarks) > 2 else ""
            yield finding(rule, ADVICE, folder / "power", expected, ("; ".join(remarks[:2]) + more)[:300])
    if problems:
        yield finding("power.read", ADVICE, folder / "power", "logs that can be read", problems[0][:200])


def _agrees(log: PowerLog, span: tuple[float, float]) -> bool:
    """Whether the readings overlap at least half of the run."""
    if not log.readings:
        return False
    first, last = log.readings[0][0], log.readings[-1][0]
    return min(last, span[1]) - max(first, span[0]) >= (span[1] - span[0]) / 2


def _timed(run: RunPower) -> list[PowerLog]:
    """Returns the logs of nodes whose clock agrees with the run's."""
    return [log for log in run.nodes if run.span and _agrees(log, run.span)]


def _clock(run: RunPower) -> Iterator[str]:
    for log in run.logs if run.span else ():
        if log.readings and not _agrees(log, run.span):
            hours = (log.readings[0][0] - run.span[0]) / 3_600_000
            whole = round(4 * hours) / 4
            zone = f", as if of another time zone ({whole:+g} h)"
            near = zone if whole and abs(hours - whole) < 0.05 else ""
            yield f"{log.path.stem} begins {3600 * hours:+,.0f} s from run_start{near}"


def _rate(run: RunPower) -> Iterator[str]:
    for log in _timed(run):
        times, seconds = [time for time, _ in run.during(log)], (run.span[1] - run.span[0]) / 1000
        rate = len(times) / seconds if seconds else 1.0
        gap = max((b - a for a, b in pairwise(times)), default=0.0) / 1000
        if seconds > 10 and rate < _LEAST_RATE:
            yield f"{rate:.2f} readings a second of {log.path.stem}, {gap:.1f} s without one"
        elif gap > _LONGEST_GAP:
            yield f"{gap:.1f} s without a reading of {log.path.stem}"


def _coverage(run: RunPower) -> Iterator[str]:
    for log in _timed(run):
        first, last = log.readings[0][0], log.readings[-1][0]
        late = (first if log.start is None else min(first, log.start)) - run.span[0]
        early = run.span[1] - last
        if max(late, early) / 1000 > _MOST_UNCOVERED:
            where = "before the first reading" if late > early else "behind the last reading"
            yield f"{max(late, early) / 1000:.1f} s of the run {where} of {log.path.stem}"
    for log in run.nodes:
        if not log.readings:
            yield f"no reading of {log.path.stem}"


def _copies(run: RunPower) -> Iterator[str]:
    seen: dict[bytes, str] = {}
    for log in run.nodes:
        if len(log.readings) > 10:
            digest = sha256(repr(log.readings).encode()).digest()
            if digest in seen:
                yield f"{log.path.stem} has the readings of {seen[digest]}"
            seen.setdefault(digest, log.path.stem)


def _start(run: RunPower) -> Iterator[str]:
    for log in run.nodes:
        if log.readings and log.start is None:
            yield f"no start of {log.path.stem}: the stock summarizer stops with an error"
        elif log.readings and log.stop is not None and log.stop <= log.start:
            yield f"the stop of {log.path.stem} is not after its start: the stock summarizer stops with an error"


def _watts(run: RunPower, description: dict | None) -> Iterator[str]:
    if not (cards := tree_system.count(description, "accelerators_per_node")):
        return
    low, high = _LEAST_WATTS * cards, _MOST_WATTS * cards
    if told := _TOLD_WATTS.search(str(description.get("accelerator_model_name", ""))):
        low, high = _LEAST_OF_TOLD * int(told[1]) * cards, _MOST_OF_TOLD * int(told[1]) * cards
    for log in _timed(run):
        inside = [watts for _, watts in run.during(log)]
        mean = fmean(inside) if inside else 0.0
        if inside and not low <= mean <= high:
            expected = f"{low:,.0f} to {high:,.0f} W expected of {cards} accelerators"
            yield f"{mean:,.4g} W on average of {log.path.stem}, {expected}"
        elif len(inside) > _LEAST_READINGS and min(inside) == max(inside):
            yield f"always {inside[0]:,.0f} W of {log.path.stem}"


def _nodes(run: RunPower, description: dict | None) -> Iterator[str]:
    nodes = tree_system.count(description, "number_of_nodes")
    if nodes and len(run.nodes) != nodes:
        yield f"{len(run.nodes)} logs of {nodes} nodes"
    elif nodes and nodes > 1 and len(run.nodes) == len(run.logs):
        yield f"{nodes} nodes, and no log or estimate of what connects them (sw_0.txt)"


def _energy(run: RunPower) -> Iterator[str]:
    for log in run.logs:
        if log.switch and log.estimate is None and log.readings:
            yield f"the stock tool counts nothing for {log.path.stem}: it reads estimates of switches, not measurements"
    rules, stock = run.joules(), run.stock_joules()
    if rules and stock and abs(rules / stock - 1) > _DIFFER:
        yield f"{rules / 1000:,.0f} kJ by the rules, {stock / 1000:,.0f} kJ by the stock tool"
