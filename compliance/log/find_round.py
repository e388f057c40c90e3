"""Finds the ruleset of a log from its folders, the benchmark it names, and its keys.

A log in the form `:::MLL` is of 0.6.0. For others a folder such as `training_results_v5.0` decides. Without one, of the
rounds that have the log's benchmark, the one with the fewest missing required keys wins, and on a tie the newest. All
logs of a submission share one round, the newest that fits each of them, or else most.
"""

import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import chain
from os import PathLike
from os import path as os_path
from typing import NamedTuple

from compliance.hints import nearest
from compliance.log import rules
from compliance.log.logs import BadLine, Record, form_of, read_log

# mlcommons/training_results_v5.0, a correction of it (v5.1.1); submitters' copies (training_results_v5.0_rc1,
# training-v5.1).
_FOLDER = re.compile(
    r"(?:training(?:_results)?|mlperf)[-_]?v?(\d+)\.(\d+)(?:\.\d)?(?![\d.])|^v(\d+)\.(\d+)$", re.IGNORECASE
)
# A log names its benchmark and hyperparameters before training starts; real headers have a few hundred records.
_MAX_RECORDS = 20_000
_MOST_HELD = 4 << 20  # bytes of a log whose first records are held; a larger one is read twice
# Keys that only this project's logs have (timetotrain/run/mllog.py). They name a round after v0.7 in `ruleset`.
_OWN_KEYS, _OWN_RULESET = frozenset(("config_digest", "smoke_run")), "0.7.0"
NAMED = "names the round"  # how the reason of a folder's name ends
_NOTHING = "0.7.0"  # ruleset for the line findings of an unreadable or empty log


class Choice(NamedTuple):
    """A ruleset, the reason for it, whether it is certain enough to judge by, and all other rulesets that also fit."""

    ruleset: str
    reason: str
    certain: bool = True
    fits: tuple[str, ...] = ()


def find(path: str | PathLike) -> Choice:
    """Finds the ruleset to check a log with.

    Raises UserError if the file cannot be read.
    """
    return open_log(path)[0]


def open_log(path: str | PathLike) -> tuple[Choice, Iterator[Record | BadLine]]:
    """Returns the ruleset to check a log with, and what `read_log` yields of it; each line is read once.

    Raises UserError if the file cannot be read.
    """
    form = form_of(path)
    folder_choice = of_folder(os_path.dirname(os_path.abspath(path)))
    if form == "seconds":
        choice = Choice("0.6.0", "its lines have the form of 0.6.0 (:::MLL)", fits=("0.6.0",))
    elif folder_choice is not None or not form:
        choice = folder_choice or Choice(_NOTHING, "it has no record")
    else:
        small = os_path.getsize(path) <= _MOST_HELD
        lines, head = read_log(path, _NOTHING), deque(maxlen=None if small else 0)
        choice = _of_content(lines, head)
        if small:
            return choice, chain(head, lines)  # every round that the content may tell reads it alike
    return choice, read_log(path, choice.ruleset)


def of_folder(folder: str | PathLike) -> Choice | None:
    """Returns the ruleset in the name of a folder (`training_results_v5.0`) or of its nearest parent; None without."""
    for part in reversed(os_path.abspath(folder).split(os_path.sep)):
        if match := _FOLDER.search(part):
            ruleset = ".".join(number for number in match.groups() if number) + ".0"
            if ruleset in rules.RULESETS:
                return Choice(ruleset, f"the folder {part} {NAMED}", fits=(ruleset,))
    return None


def _of_content(lines: Iterator[Record | BadLine], head: deque[Record | BadLine]) -> Choice:
    """Finds the ruleset from the benchmark and the keys in the log's header; adds what it reads to `head`."""
    keys: dict[str, object] = {}
    for number, record in enumerate(lines):
        head.append(record)
        if record.__class__ is Record and isinstance(record.key, str):
            keys.setdefault(record.key, record.value)
            if record.key == "run_stop" or (record.key == "eval_accuracy" and len(keys) > 200):
                break
        if number > _MAX_RECORDS:
            break
    if not keys:
        return Choice(_NOTHING, "it has no readable record")
    return of_keys(keys)


def of_keys(keys: dict[str, object]) -> Choice:
    """Finds the ruleset of a log from its keys and their first values."""
    benchmark, division = keys.get("submission_benchmark"), keys.get("submission_division")
    names = list(dict.fromkeys(name for ruleset in rules.RULESETS[1:] for name in rules.benchmarks(ruleset)))
    name = benchmark if benchmark in names else nearest(benchmark, names)
    if name is None:
        fault = f"submission_benchmark is {str(benchmark)[:40]!r}" if benchmark else "no submission_benchmark"
        if benchmark in rules.HPC_BENCHMARKS:
            return Choice(_NOTHING, f"{fault}, a benchmark of MLPerf HPC, which is not covered", False)
        return Choice(_NOTHING, f"{fault}, so no round could be taken from the log", False)
    division = division if division in rules.DIVISIONS else "closed"
    fitting = [ruleset for ruleset in rules.rulesets_with(name) if ruleset != "0.6.0"]
    own_ruleset = keys.get("ruleset", _OWN_RULESET)
    if own_ruleset in fitting and _OWN_KEYS & keys.keys():
        short = own_ruleset.removesuffix(".0")
        reason = f"the log is one of this project, whose rules are those of v{short}"
        return Choice(own_ruleset, reason, fits=(own_ruleset,))
    fitting = [one for one in fitting if rules.has_rules(one, name, division)] or fitting
    missing = {ruleset: len(required(ruleset, division, name) - keys.keys()) for ruleset in fitting}
    fewest = min(missing.values())
    equal = [ruleset for ruleset in fitting if missing[ruleset] == fewest]
    if len(fitting) == 1:
        reason = f"only this round has {name}"
    elif len(equal) == 1:
        reason = f"the keys for {name} fit it best"
    else:
        reason = f"the newest round whose keys for {name} the log has{_of(equal)}"
    return Choice(equal[-1], reason, fits=tuple(equal))


def of_submission(choices: Iterable[Choice]) -> Choice | None:
    """Returns the round that a submission's logs share, given their choices; None if none has a fitting round."""
    votes = [choice for choice in choices if choice.fits]
    if len({choice.ruleset for choice in votes}) < 2:
        return votes[0] if votes else None
    counts = Counter(ruleset for choice in votes for ruleset in choice.fits)
    most = max(counts.values())
    equal = [ruleset for ruleset in rules.RULESETS if counts[ruleset] == most]
    reason = f"the newest round that {'all' if most == len(votes) else 'most'} logs of the submission fit"
    return Choice(equal[-1], reason + _of(equal), fits=tuple(equal))


def _of(rounds: list[str]) -> str:
    return f" (of {', '.join(rounds)}; --ruleset takes another)" if len(rounds) > 1 else ""


@cache
def required(ruleset: str, division: str, benchmark: str) -> frozenset[str]:
    """Returns the keys that a benchmark's log must have, except those that depend on another key's value."""
    files = ["common", f"{division}/common", rules.section_name(ruleset, division, benchmark)]
    sections = [rules.load(ruleset, name)["keys"] for name in files if name in rules.names(ruleset)]
    specs = {key: spec for keys in sections for key, spec in keys.items()}
    needed = frozenset(key for key, spec in specs.items() if spec.get("occurs", "optional") != "optional")
    return needed - {"aggregated_eval_accuracy"}  # which is made of other records
