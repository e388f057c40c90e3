"""Compares the runs of one folder: runs that are alike, begin at one moment, or take no time. Gives advice only."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from compliance.findings import ADVICE, Finding, finding
from compliance.submission.facts import Facts

# Fewer digits than this may agree by chance: two runs that evaluate once and both find 0.76.
_DIGITS = 12
# Runs may go in parallel on several machines: of 347 published folders one has two runs that begin closer than this.
_APART_MS = 20.0
# In the published folders no run that trained is this much shorter than the median of its folder.
_SHORT = 0.1
_SHOWN = 5


def remarks(path: Path, facts: Sequence[Facts]) -> Iterator[Finding]:
    """Yields advice about the runs of the folder `path`."""
    yield from _alike(path, facts)
    yield from _at_once(path, facts)
    yield from _short(path, facts)


def _alike(path: Path, facts: Sequence[Facts]) -> Iterator[Finding]:
    """Runs with the same results, although they have another seed: training from another seed gives other ones."""
    same: dict[tuple, list[Facts]] = defaultdict(list)
    for one in facts:
        if sum(char.isdigit() for _, value in one.results for char in value) >= _DIGITS:
            same[tuple(value for _, value in one.results)].append(one)
    groups = [group for group in same.values() if len(group) > 1]
    if groups:
        largest = max(groups, key=len)
        timed = len({tuple(time for time, _ in one.results) for one in largest}) == 1
        found = f"{len(largest)} runs with the same {len(largest[0].results)} results"
        found += " at the same times" if timed else ""
        yield finding("tree.alike", ADVICE, path, "runs of their own", f"{found}: {_named(largest)}")


def _at_once(path: Path, facts: Sequence[Facts]) -> Iterator[Finding]:
    """Runs that began at one moment."""
    started = sorted((one for one in facts if one.started is not None), key=lambda one: one.started)
    close = [
        (one, later) for one, later in zip(started, started[1:]) if later.started - one.started < _APART_MS
    ]
    if close:
        one, later = close[0]
        seconds = (later.started - one.started) / 1000
        more = f", and {len(close) - 1} more pairs" if len(close) > 1 else ""
        found = f"{seconds:.3f} s between {Path(one.path).name} and {Path(later.path).name}{more}"
        yield finding("tree.at-once", ADVICE, path, "runs that begin by themselves", found)


def _short(path: Path, facts: Sequence[Facts]) -> Iterator[Finding]:
    """Runs that took a small part of the others' time."""
    took = {
        one.path: one.stopped - one.started
        for one in facts
        if one.started is not None and one.stopped is not None
    }
    if len(took) < 3:
        return
    middle = median(took.values())
    short = {name: time for name, time in took.items() if 0 < time < middle * _SHORT}
    if short:
        named = ", ".join(
            f"{Path(name).name} {time / 1000:.6g} s" for name, time in [*short.items()][:_SHOWN]
        )
        wanted = f"about as long as the others, {middle / 1000:,.0f} s in the middle"
        yield finding("tree.short", ADVICE, path, wanted, named)


def _named(facts: Sequence[Facts]) -> str:
    names = ", ".join(Path(one.path).name for one in facts[:_SHOWN])
    return names + (", ..." if len(facts) > _SHOWN else "")
