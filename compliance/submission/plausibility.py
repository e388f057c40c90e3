"""Asks whether the runs of a folder can be what they say: copies, times, sizes, speeds. Gives advice only.

docs/compliance.md ("Plausibility") lists the rules.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise
from pathlib import Path
from statistics import fmean, median

from compliance.findings import ADVICE, Finding, finding
from compliance.log.logs import numeral
from compliance.submission.runs import Run
from compliance.submission.tree_system import accelerators

# Fewer digits than this may agree by chance: two runs that evaluate once and both find 0.76.
_DIGITS = 12
# Runs may go in parallel on several machines: of 347 published folders one has two runs that begin closer than this.
_APART_MS = 20.0
# In the published folders no run that trained is this much shorter than the median of its folder.
_SHORT = 0.1
_SHORTEST_MS = 3_600.0  # half of the shortest published score (bert of v3.1 on 3,584 H100)
# Two runs are a copy and its jitter if their results are this much closer than those of the middle pair.
_JITTER = 0.02
_LEAST_SHARED = 3  # evaluations that two runs have in common, for that comparison
# Of the accelerator-minutes of the best published result on the same accelerator.
_FAST = 0.6
_SHOWN = 5
_NUMBERS = re.compile(
    r"(.*_)?opt_.*(learning_rate|_lr|beta_?\d|epsilon|weight_decay|momentum|clip_norm|_steps|_epochs|_factor)"
    r"|global_batch_size|gradient_accumulation_steps|max_sequence_length|lora_(rank|alpha)|(train|eval)_samples"
)

_ABOVE_0 = frozenset(
    ("global_batch_size", "gradient_accumulation_steps", "max_sequence_length", "train_samples", "eval_samples")
)  # fmt: skip


def remarks(path: Path, runs: Sequence[Run], description: dict | None, benchmark: str) -> Iterator[Finding]:
    """Yields advice about the runs of the folder `path` on the system that `description` tells of (None: unknown)."""
    copies = list(_alike(path, runs))
    yield from copies or _jittered(path, runs)
    yield from _at_once(path, runs)
    yield from _short(path, runs)
    yield from _gap(path, runs)
    yield from _values(path, runs)
    yield from _sizes(path, runs, description)
    yield from _fast(path, runs, description, benchmark)


def _alike(path: Path, runs: Sequence[Run]) -> Iterator[Finding]:
    """Runs with the same results, although they have another seed: training from another seed gives other ones."""
    same: dict[tuple, list[Run]] = defaultdict(list)
    for one in runs:
        if sum(char.isdigit() for result in one.results for char in result.value) >= _DIGITS:
            same[tuple(result.value for result in one.results)].append(one)
    groups = [group for group in same.values() if len(group) > 1]
    if groups:
        largest = max(groups, key=len)
        timed = len({tuple(result.ms for result in one.results) for one in largest}) == 1
        actual = f"{len(largest)} runs with the same {len(largest[0].results)} results"
        actual += " at the same times" if timed else ""
        yield finding("tree.alike", ADVICE, path, "runs of their own", f"{actual}: {_names(largest)}")


def _jittered(path: Path, runs: Sequence[Run]) -> Iterator[Finding]:
    """A run whose results follow another's much closer than runs of other seeds do: a copy with changed digits."""
    curves = [
        {one.at: value for one in run.results if (value := numeral(one.value)) is not None} for run in runs
    ]
    distances = [
        (fmean(abs(a[at] - b[at]) for at in a), first, second)
        for (first, a), (second, b) in combinations(enumerate(curves), 2)
        if len(a) >= _LEAST_SHARED and a.keys() == b.keys()
    ]
    if len(distances) < 3:
        return
    usual = median(distance for distance, *_ in distances)
    least, first, second = min(distances)
    if 0 < least < _JITTER * usual:
        actual = f"{_names([runs[first], runs[second]])}: {least / usual:.2g} of the usual distance"
        yield finding("tree.alike", ADVICE, path, "runs of their own", actual, wording="tree.alike.near")


def _at_once(path: Path, runs: Sequence[Run]) -> Iterator[Finding]:
    """Runs that began at one moment."""
    started = sorted((one for one in runs if one.started is not None), key=lambda one: one.started)
    close = [pair for pair in pairwise(started) if pair[1].started - pair[0].started < _APART_MS]
    if close:
        one, later = close[0]
        seconds = (later.started - one.started) / 1000
        more = f", and {len(close) - 1} more pairs" if len(close) > 1 else ""
        actual = f"{seconds:.3f} s between {Path(one.path).name} and {Path(later.path).name}{more}"
        yield finding("tree.at-once", ADVICE, path, "runs that begin by themselves", actual)


def _times(runs: Sequence[Run]) -> dict[str, float]:
    """Returns the milliseconds of each run that has a start and a stop."""
    both = (one for one in runs if one.started is not None and one.stopped is not None)
    return {one.path: one.stopped - one.started for one in both}


def _short(path: Path, runs: Sequence[Run]) -> Iterator[Finding]:
    """Runs that took a small part of the others' time, or less than any run can."""
    took = _times(runs)
    middle = median(took.values()) if len(took) > 2 else 0
    bound = max(middle * _SHORT, _SHORTEST_MS)
    short = {name: time for name, time in took.items() if 0 < time < bound}
    if short:
        times = [f"{Path(name).name} {time / 1000:.6g} s" for name, time in short.items()]
        expected = f"more than {bound / 1000:,.3g} s; the middle run took {middle / 1000:,.3g} s"
        yield finding("tree.short", ADVICE, path, expected, ", ".join(times[:_SHOWN]))


def _gap(path: Path, runs: Sequence[Run]) -> Iterator[Finding]:
    """Numbers of results that do not follow each other: runs may have been left out."""
    matches = (re.fullmatch(r"result_(\d{1,6})\.txt", Path(one.path).name) for one in runs)
    numbers = sorted(int(match[1]) for match in matches if match)
    if len(numbers) > 2 and numbers[-1] >= min(1, numbers[0]) + len(numbers):
        actual = f"{len(numbers)} logs, numbers {numbers[0]} to {numbers[-1]}"
        yield finding("tree.gap", ADVICE, path, "result_0.txt, result_1.txt, ...", actual)


def _values(path: Path, runs: Sequence[Run]) -> Iterator[Finding]:
    """Hyperparameters that are no finite number of 0 or more, or counts of 0; -1 training steps are common."""
    for key in sorted({key for one in runs for key in one.hyperparameters if _NUMBERS.fullmatch(key)}):
        for one in runs:
            text = one.hyperparameters.get(key, "1")
            number = numeral(text)
            unlimited = number == -1 and key.endswith("_training_steps")
            least = "more than 0" if key in _ABOVE_0 else "0 or more"
            if key.endswith(("_steps", "_epochs")) and _is_schedule(text):
                continue
            if number is None or (number < 0 and not unlimited) or (number == 0 and key in _ABOVE_0):
                actual = f"{text} in {Path(one.path).name}"
                yield finding("tree.value", ADVICE, path, f"{key}: a number, {least}", actual, key=key)
                break


def _sizes(path: Path, runs: Sequence[Run], description: dict | None) -> Iterator[Finding]:
    """Batches and data sets that cannot be."""
    values = runs[0].hyperparameters
    batch, steps, train, held_out = (
        numeral(values.get(key, ""))
        for key in ("global_batch_size", "gradient_accumulation_steps", "train_samples", "eval_samples")
    )
    if batch and steps and (batch % steps or (accelerators(description) or 0) > 64 * batch / steps):
        actual = f"a batch of {batch:g} in {steps:g} steps on {accelerators(description)} accelerators"
        yield finding("tree.batch", ADVICE, path, "a part of each batch on every accelerator", actual)
    if train and held_out and train < held_out:
        actual = f"{train:,.0f} to train, {held_out:,.0f} to evaluate"
        yield finding("tree.samples", ADVICE, path, "more samples to train than to evaluate", actual)


def _fast(path: Path, runs: Sequence[Run], description: dict | None, benchmark: str) -> Iterator[Finding]:
    """Runs that need a small part of the accelerator-minutes of every published result on the same accelerator."""
    from compliance.report.published import best_of_accelerator  # reads the tables only for a folder

    used, took = accelerators(description), _times(runs)
    best = best_of_accelerator(benchmark, str((description or {}).get("accelerator_model_name", "")))
    if not used or not took or best is None:
        return
    own_minutes = median(took.values()) / 60_000 * used
    if own_minutes < _FAST * best:
        actual = f"{own_minutes:,.4g} accelerator-minutes on {used} accelerators"
        yield finding("tree.fast", ADVICE, path, f"about {best:,.4g}, the least that is published", actual)


def _is_schedule(text: str) -> bool:
    """Whether a value is a list of numbers of 0 or more."""
    numbers = [numeral(part) for part in text[1:-1].split(",") if text != "[]"]
    return text[:1] + text[-1:] == "[]" and all(number is not None and number >= 0 for number in numbers)


def _names(runs: Sequence[Run]) -> str:
    names = ", ".join(Path(one.path).name for one in runs[:_SHOWN])
    return names + (", ..." if len(runs) > _SHOWN else "")
