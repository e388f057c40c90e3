"""Implements `timetotrain borrow OWN OTHER`: which hyperparameters may be taken over after the deadline.

The rule: mlcommons/training_policies, training_rules.adoc, "Hyperparameter Borrowing"; its dates: mlcommons/policies,
submission_rules.adoc, "Schedule" (declared by Monday of review week 3, final code by Wednesday).
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

from compliance.changes import hyperparameters
from compliance.changes.hyperparameters import BATCH, FIXED, GROUP, SYSTEM, Side
from compliance.log import rules
from compliance.log.find_round import find, of_folder, of_submission
from compliance.report.output import aligned, value
from compliance.submission import scores

# What the rules say of each kind, in the order in which the kinds are shown.
_SAYS = {
    GROUP: "taken over as a group: all of them, or none",
    BATCH: "yours to choose",
    FIXED: "fixed by the rules",
    SYSTEM: "no hyperparameter: stays as submitted",
}
# They follow the batch or name it; the rules do not list them among what must stay.
_EXPLAINED = frozenset(
    ("config_filename", "tensor_parallelism", "pipeline_parallelism", "context_parallelism", "expert_parallelism")
)  # fmt: skip
_ONCE = (
    "once for each benchmark entry, declared by Monday of review week 3, in the final code by Wednesday",
    "software, system and configuration stay; only the largest scale of a system may change, to a larger or faster one",
    "other changes need evidence that the model converges worse at the other's batch size, and may not pass it",
)


@dataclass(frozen=True)
class Setting:
    """A setting that differs: its value on each side as text ("" if not logged), its kind, the value that rules fix."""

    name: str
    own: str
    other: str
    kind: str
    rule: str = ""
    again: str | None = None
    wrong: str = ""  # what is wrong with the value that was sent again


@dataclass(frozen=True)
class Borrowing:
    """`refused`: why the rules allow no borrowing here, or what is wrong with what was sent again; () if nothing is."""

    benchmark: str
    ruleset: str
    refused: tuple[str, ...]
    rows: list[Setting]
    same: int
    notes: tuple[str, ...]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("own", metavar="OWN", type=Path, help="your folder of runs: results/<system>/<benchmark>")
    add("other", metavar="OTHER", type=Path, help="the other submitter's folder of runs")
    new = "your runs with the borrowed values: were they borrowed by the rules?"
    add("--again", metavar="NEW", type=Path, help=new)
    add("--ruleset", **rules.CHOICE, help="default: what the logs say")
    add("--format", choices=("text", "json"), default="text", help="default: %(default)s")


def run(options: argparse.Namespace) -> int:
    """Prints the comparison; returns 1 if the rules do not allow it, else 0.

    Raises UserError: a folder has no logs, or logs of several benchmarks.
    """
    rounds, guessed = rounds_of(options.own, options.other, options.ruleset)
    places = zip((options.own, options.other), rounds)
    sides = [hyperparameters.read(path, ruleset or None) for path, ruleset in places]
    again = hyperparameters.read(options.again, rounds[0] or None) if options.again else None
    if guessed and options.format == "text":
        print(guessed)
    borrowing = compare(*sides, again)
    if options.format == "json":
        content = asdict(borrowing)
        head = {name: content.pop(name) for name in ("benchmark", "ruleset")}
        head["allowed"] = not borrowing.refused
        print(json.dumps(head | content, indent=2))
    else:
        print(_text(borrowing, again is not None))
    return int(bool(borrowing.refused))


def rounds_of(a: Path, b: Path, ruleset: str | None = None) -> tuple[tuple[str, str], str]:
    """Returns the rounds of two folders of runs, and a line that says how one was guessed; "" if none was.

    A folder named after its round decides for itself. A side without such a name is of the round of the other, or of
    the newest round that fits the logs of both.
    """
    if ruleset:
        return (ruleset, ruleset), ""
    named = [found and found.ruleset for found in map(of_folder, (a, b))]
    if all(named):
        return tuple(named), ""
    if any(named):
        taken, why = named[0] or named[1], "as the other side's folder says"
    else:
        folders = dict.fromkeys(folder for path in (a, b) for folder in scores.result_folders(path))
        choice = of_submission(find(scores.result_files(folder)[0]) for folder in folders)
        if choice is None:
            return ("", ""), ""
        taken, why = choice.ruleset, choice.reason.replace("; --ruleset takes another", "")
    return tuple(name or taken for name in named), f"round {taken}: {why}; --ruleset names another"


def compare(own: Side, other: Side, again: Side | None = None) -> Borrowing:
    """Compares two folders of runs; `again` holds the runs of OWN with the borrowed values."""
    sides = [own, other, *([again] if again else [])]
    names = list(dict.fromkeys(name for side in sides for name in side.settings))
    rows = [_row(name, own, other, again) for name in names]
    shown = [row for row in rows if row.own != row.other or row.wrong or row.again not in (None, row.own)]
    shown.sort(key=lambda row: list(_SAYS).index(row.kind))
    refused = _refused(own, other)
    if again and again.benchmark != own.benchmark:
        refused.append(f"sent again are runs of {again.benchmark or 'no benchmark'}")
    if again and again.org != own.org:
        refused.append(f"sent again by {again.org}, submitted by {own.org}")
    refused += [f"{row.name}: {row.wrong}" for row in shown if row.wrong]
    if not any(row.kind in (GROUP, BATCH) and row.own != row.other != "" for row in shown):
        refused.append("no hyperparameter differs that may be borrowed")
    notes = tuple(_notes(own, other, again))
    return Borrowing(own.benchmark, own.ruleset, tuple(refused), shown, len(rows) - len(shown), notes)


def _row(name: str, own: Side, other: Side, again: Side | None) -> Setting:
    kind = hyperparameters.kind(name, own.benchmark, own.ruleset)
    rule = hyperparameters.rule(name, own.benchmark, own.ruleset) if kind == FIXED else ""
    texts = [hyperparameters.shown(side, name) for side in (own, other)]
    if again is None:
        wrong = ""
        if kind == FIXED and not hyperparameters.side_obeys(name, other):
            wrong = f"OTHER has {texts[1]}, the rules fix {rule}: not to be borrowed"
        return Setting(name, *texts, kind, rule, None, wrong)
    new = hyperparameters.shown(again, name)
    return Setting(name, *texts, kind, rule, new, _wrong(name, kind, rule, texts, new, again))


def _wrong(name: str, kind: str, rule: str, texts: Sequence[str], new: str, again: Side) -> str:
    """Says what is wrong with a value that was sent again; "" if nothing is."""
    own, other = (text or "nothing" for text in texts)
    if kind == FIXED and not hyperparameters.side_obeys(name, again):
        return f"sent again as {new}, the rules fix {rule}"
    if kind == GROUP and texts[1] and new != texts[1]:
        return f"sent again as {new or 'nothing'}, OTHER has {other}: the group is taken over whole"
    if kind == GROUP and not texts[1] and new != texts[0]:
        return f"sent again as {new or 'nothing'}, submitted as {own}, and OTHER does not log it"
    if kind == SYSTEM and new != texts[0] and name not in _EXPLAINED:
        return f"sent again as {new or 'nothing'}, submitted as {own}: software and system stay"
    return ""


def _refused(own: Side, other: Side) -> list[str]:
    reasons = []
    if own.benchmark != other.benchmark:
        pair = f"OWN is {own.benchmark or 'no benchmark'}, OTHER {other.benchmark or 'none'}"
        reasons.append(f"{pair}: one benchmark only")
    if own.ruleset != other.ruleset:
        pair = f"OWN is of round {own.ruleset}, OTHER of {other.ruleset}"
        reasons.append(f"{pair}: only within the review of one round")
    if own.benchmark in hyperparameters.NO_BORROWING:
        reasons.append(f"the hyperparameters of {own.benchmark} are fixed: the rules allow no borrowing")
    if own.org and own.org == other.org:
        reasons.append(f"both are of {own.org}: hyperparameters are borrowed from another submitter")
    for side, name in ((own, "OWN"), (other, "OTHER")):
        kinds = {key: hyperparameters.kind(key, own.benchmark, own.ruleset) for key in side.differing}
        if loose := [key for key, kind in kinds.items() if kind != SYSTEM]:
            reasons.append(f"the runs of {name} differ in {', '.join(loose)}: make them one set first")
    return reasons


def _notes(own: Side, other: Side, again: Side | None) -> list[str]:
    notes = []
    if own.division != "closed":
        notes.append("the open division restricts no hyperparameter: nothing to borrow")
    batches = [side.settings.get("global_batch_size") for side in (own, other)]
    means = [_mean(side) for side in (own, other)]
    if batches[0] == batches[1] and None not in means:
        told = f"OWN converges after {value(means[0])}, OTHER after {value(means[1])}"
        notes.append(f"at batch {batches[0]} {told}")
    if again is None:
        return [*notes, *_ONCE]
    explained, shown = sorted(_EXPLAINED), hyperparameters.shown
    if moved := ", ".join(name for name in explained if shown(again, name) != shown(own, name)):
        notes.append(f"sent again with another {moved}: say why, the system's configuration has to stay")
    new = _mean(again)
    if again.settings.get("global_batch_size") == batches[1] and new and means[1] and new < means[1]:
        notes.append(
            f"sent again, it converges after {value(new)}, OTHER after {value(means[1])}: comparable is allowed, "
            "better is not, if anything but the group and the batch changed"
        )
    return [*notes, *_ONCE]


def _mean(side: Side) -> float | None:
    found = [run.epochs for run in side.runs if run.complies and run.epochs is not None]
    return fmean(found) if found else None


def _text(borrowing: Borrowing, again: bool) -> str:
    lines = [f"{borrowing.benchmark or 'no benchmark'}, round {borrowing.ruleset}"]
    heads = ["", "OWN", "OTHER", *(["NEW"] if again else [])]
    for kind, says in _SAYS.items():
        rows = [row for row in borrowing.rows if row.kind == kind]
        values = ([row.name, row.own, row.other, row.again][: 3 + again] for row in rows)
        table = aligned([heads, *([text or "-" for text in row] for row in values)])
        ends = ["", *(f"  rules: {row.rule}" if row.rule else "" for row in rows)]
        if rows:
            lines += [f"{says}:", *(f"  {line}{end}" for line, end in zip(table, ends))]
    lines.append(f"{borrowing.same} settings are the same on all sides")
    lines += [f"note: {note}" for note in borrowing.notes]
    lines += [f"not allowed: {reason}" for reason in borrowing.refused] or ["allowed"]
    return "\n".join(lines)
