"""Lists what differs between two trees of one submitter, and says what of it may be sent again.

The rules: mlcommons/policies, submission_rules.adoc, "Fixing objections", "Hyperparameter borrowing", "Withdrawing
results or changing division"; mlcommons/training_policies, training_rules.adoc, "Hyperparameter Borrowing", "Results
Resubmission".
"""

import filecmp
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from common.errors import UserError
from compliance.changes import hyperparameters
from compliance.changes.hyperparameters import BATCH, FIXED, GROUP, Side
from compliance.hints import listed
from compliance.report.output import minutes, value
from compliance.submission import scores, tree_system
from compliance.submission.tree_files import kind_of, walk

MAY, MAY_NOT, ASK, SAME = "may", "may not", "ask", ""
# Fields of a description that say which hardware ran; a correction of the others changes no result.
_HARDWARE = frozenset((
    "number_of_nodes", "host_processors_per_node", "accelerators_per_node", "accelerator_model_name",
    "host_processor_model_name", "accelerator_memory_capacity", "accelerator_interconnect", "host_networking",
))  # fmt: skip
_FRAMEWORK = frozenset(("framework", "other_software_stack", "operating_system"))
_MAX_FILES = 100_000


class Change(NamedTuple):
    """One difference. `answer`: MAY, MAY_NOT or ASK (the review committee decides); SAME: nothing to answer."""

    place: str  # "settings", "runs", "score", "description", "code", "folder", "division"
    name: str
    a: str
    b: str
    answer: str
    why: str


def of_folders(a: Path, b: Path, rounds: tuple[str, str]) -> Iterator[Change]:
    """Yields the differences of two folders of runs of one benchmark on one system.

    Raises UserError: one of them holds no logs, or logs of several benchmarks.
    """
    sides = [hyperparameters.read(path, ruleset or None) for path, ruleset in zip((a, b), rounds)]
    settings = list(_settings(*sides))
    yield from settings
    borrowed = any(change.place == "settings" and change.answer == ASK for change in settings)
    yield from _runs(a, b, borrowed, sides[0].ruleset != sides[1].ruleset)
    cards = [scores.score_directory(path, side.ruleset) for path, side in zip((a, b), sides)]
    if cards[0].score != cards[1].score:
        texts = (minutes(card.score) for card in cards)
        yield Change("score", "minutes", *texts, SAME, "follows from the runs")


def _settings(a: Side, b: Side) -> Iterator[Change]:
    if a.division != b.division:
        yield Change("division", "submission_division", a.division, b.division, *_of_division(b.division))
    for name in dict.fromkeys([*a.settings, *a.differing, *b.settings, *b.differing]):
        first, second = (hyperparameters.shown(side, name) for side in (a, b))
        if first == second:
            continue
        kind = hyperparameters.kind(name, a.benchmark, a.ruleset)
        yield Change("settings", name, first, second, *_of_setting(kind, name, a, b))


def _of_setting(kind: str, name: str, a: Side, b: Side) -> tuple[str, str]:
    if name == "config_filename":
        return ASK, "a file of another name: the code must be in the tree"
    if kind == FIXED:
        if hyperparameters.side_obeys(name, b):
            return MAY, "the value that the rules fix"
        return MAY_NOT, f"the rules fix {hyperparameters.rule(name, b.benchmark, b.ruleset)}"
    if kind in (GROUP, BATCH):
        if a.benchmark in hyperparameters.NO_BORROWING:
            return MAY_NOT, f"the hyperparameters of {a.benchmark} are fixed, and nothing may be borrowed"
        if kind == BATCH:
            return ASK, "only with a borrowed group of hyperparameters"
        return ASK, "only if borrowed, with the whole group: timetotrain borrow OWN OTHER --again NEW"
    return ASK, "software and system stay, unless an objection asks for the change"


def _runs(a: Path, b: Path, borrowed: bool, later_round: bool) -> Iterator[Change]:
    names = first, second = [{file.name for file in scores.result_files(path)} for path in (a, b)]
    equal = {name for name in first & second if filecmp.cmp(a / name, b / name, shallow=False)}
    kinds = {"changed": first & second - equal, "only in A": first - second, "only in B": second - first}
    answer, why = MAY_NOT, "the settings are the same: new runs would only be other, better luck"
    if later_round:
        answer, why = SAME, "runs of another round"
    elif borrowed:
        answer = ASK
        why = "new runs only with borrowed hyperparameters, once, or where an objection asks for them"
    for kind, files in ((kind, sorted(files)) for kind, files in kinds.items() if files):
        yield Change("runs", kind, *map(str, map(len, names)), answer, f"{listed(files, 4)}: {why}")
    if later_round and equal:
        why = "logs of an earlier round: an issue before the first review meeting, and they must pass the new checker"
        yield Change("runs", "sent again", str(len(equal)), str(len(equal)), ASK, why)


def of_descriptions(a: Path, b: Path, again: bool) -> Iterator[Change]:
    """Yields the differences of two descriptions of a system; `again`: logs of an earlier round are sent again."""
    contents = []
    for path in (a, b):
        try:
            contents.append(tree_system.load(path))
        except FileNotFoundError:
            contents.append({})
        except (OSError, ValueError) as error:
            raise UserError(f"{path}: {error}; give a JSON object") from None
    if not contents[0] or not contents[1]:
        if contents[0] != contents[1]:
            there = ("there" if one else "" for one in contents)
            yield Change("description", path.name, *there, MAY, "goes with the results of its system")
        return
    for name in dict.fromkeys([*contents[0], *contents[1]]):
        first, second = (value(one[name]) if name in one else "" for one in contents)
        if first == second:
            continue
        if again:
            answer, why = MAY_NOT, "logs sent again need the very same description"
        elif name == "division":
            answer, why = _of_division(second)
        elif name in _HARDWARE:
            answer, why = ASK, "the system stays: only a correction of what ran"
        elif name in _FRAMEWORK:
            answer, why = ASK, "the software stays: only a correction of what ran"
        else:
            answer, why = MAY, "a correction of the text"
        yield Change("description", name, first, second, answer, why)


def _of_division(new: str) -> tuple[str, str]:
    if new == "open":
        return MAY, "an entry may move to the open division"
    return MAY_NOT, "only to the open division"


def of_code(a: Path, b: Path) -> Iterator[Change]:
    """Yields the files below `benchmarks/` that differ; links and special files are compared by kind alone."""
    files = [_files(path) for path in (a, b)]
    for name in sorted({*files[0], *files[1]}):
        first, second = (side.get(name) for side in files)
        kinds = [kind_of(path) for path in (first, second) if path]
        alike = len(kinds) == 2 and kinds[0] == kinds[1]
        if alike and (kinds[0] != "file" or filecmp.cmp(first, second, shallow=False)):
            continue
        sizes = ("" if path is None else f"{os.lstat(path).st_size} bytes" for path in (first, second))
        why = "to fix an objection, before the final code is due; the runs must be of it"
        yield Change("code", name, *sizes, MAY, why)


def _files(root: Path) -> dict[str, Path]:
    paths = (Path(place, name) for place, names in walk(root) for name in names)
    files = {path.relative_to(root).as_posix(): path for path in islice(paths, _MAX_FILES + 1)}
    if len(files) > _MAX_FILES:
        raise UserError(f"{root}: more than {_MAX_FILES:,} files; name a submitter's folder")
    return files
