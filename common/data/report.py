"""Collects what a conversion of a user's files took, left out, changed and suspects, for screen, page and JSON."""

import dataclasses
import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common.errors import UserError, printable
from common.files import write_atomically

NAME = "report.json"
# A class with fewer training examples is suspicious; so are classes of which one has this many times the examples of
# another. Both are this project's choice: below them, an evaluation says little about the class.
FEW, IMBALANCE = 5, 50
# So is a conversion that lost this part of its items, and more than a few: its result is not the user's data. This
# project's choice too.
LOST, A_FEW = 0.1, 2
# Names that tables and programs write where a label is missing or a region has none, in lower case.
NO_CLASS = {
    *("nan", "null", "none", "n/a", "na", "#n/a", "<na>", "nat", "unknown", "unlabeled", "unlabelled"),
    *("undefined", "ignore", "__ignore__", "_background_", "__background__", "void", "dontcare", "?", "-"),
}


def _as_number(name: str) -> str:
    try:
        return str(float(name))
    except ValueError:
        return name


_ALIKE = {
    "upper and lower case": str.casefold,
    "how a number is written": _as_number,
    "blanks, hyphens and underscores": lambda name: re.sub(r"[-_ ]+", " ", name).strip(),
}


@dataclasses.dataclass
class Finding:
    """How often a kind of finding occurred, and its first example."""

    count: int = 0
    example: str = ""


@dataclasses.dataclass
class Report:
    """A conversion's findings; converters add to it while they work. Not thread-safe.

    Attributes:
      totals: {unit: number}, such as {"pictures": 90}.
      lines: one line for each item that was left out; `left_out` groups them by reason.
      left_out, skipped, changed, suspicious: {reason: Finding}. `left_out` holds faulty items, `skipped`
        files that are not data, such as a README.
      choices: {what: (its value, who chose it)}, such as {"languages": ("en de", "the files' names")}.
      lost: the reasons of `skipped` files that look like data, and of changes that lose some.
    """

    totals: Counter[str] = dataclasses.field(default_factory=Counter)
    lines: list[str] = dataclasses.field(default_factory=list)
    left_out: dict[str, Finding] = dataclasses.field(default_factory=dict)
    skipped: dict[str, Finding] = dataclasses.field(default_factory=dict)
    changed: dict[str, Finding] = dataclasses.field(default_factory=dict)
    suspicious: dict[str, Finding] = dataclasses.field(default_factory=dict)
    choices: dict[str, tuple[str, str]] = dataclasses.field(default_factory=dict)
    lost: set[str] = dataclasses.field(default_factory=set)

    def choose(self, what: str, value: str, by: str) -> None:
        """Notes a choice and its chooser: a flag, the files, or the converter."""
        self.choices[what] = value, by

    def take(self, unit: str, count: int = 1) -> None:
        """Counts items that became records."""
        self.totals[unit] += count

    def leave_out(self, reason: str, example: str, line: str | None = None, most: float = math.inf) -> None:
        """Notes a faulty item; `line` is its line for the user, by default "EXAMPLE: REASON".

        `most` is the number of lines with this reason beyond which items are only counted.
        """
        _add(self.left_out, reason, example, 1)
        if self.left_out[reason].count <= most:
            self.lines.append(printable(" ".join((line or f"{example}: {reason}").split())))

    def skip(self, reason: str, example: str, count: int = 1, lost: bool = False) -> None:
        """Notes files that are not data; `lost`: they look like data."""
        _add(self.skipped, reason, example, count)
        if lost:
            self.lost.add(reason)

    def change(self, what: str, example: str, count: int = 1) -> None:
        """Notes items that were taken in another form, such as pictures turned upright."""
        _add(self.changed, what, example, count)

    def suspect(self, what: str, example: str, count: int = 1) -> None:
        """Notes items that were taken although they look wrong."""
        _add(self.suspicious, what, example, count)

    def complete(self, balance: Sequence[tuple[str, int, int]], unit: str, split: Mapping[str, int]) -> None:
        """Adds the counts of a finished conversion; see `balance`. `split` is {"train": number, "eval": number}."""
        self.balance(balance, unit)
        self.choices.setdefault(
            "split", (f"{split['train']} to train on, {split['eval']} to evaluate on", "the files")
        )
        for part, count in split.items():
            self.take(f"{unit} to {'train on' if part == 'train' else 'evaluate on'}", count)
        total = max(sum(split.values()), sum(train + held_out for _, train, held_out in balance))
        lost = {r: one for r, one in {**self.skipped, **self.changed}.items() if r in self.lost}
        for reason, one in {**self.left_out, **lost}.items():
            if one.count > A_FEW and one.count > LOST * (total + one.count):
                self.suspect(
                    f"a large part left out ({reason})", f"{one.count} beside {total} taken", one.count
                )

    def balance(self, counts: Sequence[tuple[str, int, int]], unit: str) -> None:
        """Notes suspicious classes.

        Args:
          counts: (class, training examples, evaluation examples) of every class.
          unit: what is counted, such as "pictures".
        """
        for name, train, held_out in counts:
            if train < FEW:
                self.suspect(f"class with fewer than {FEW} {unit} to train on", f"{name} ({train})")
            if not held_out:
                self.suspect(f"class without {unit} to evaluate on", name)
        names = [name for name, *_ in counts]
        for name in names:
            if name.casefold() in NO_CLASS:
                self.suspect("a class whose name says that there is none", name)
        for what, spelling in _ALIKE.items():
            spellings: dict[str, str] = {}
            for name in names:
                other = spellings.setdefault(spelling(name), name)
                if other != name:
                    self.suspect(f"classes that differ only in {what}", f"{other} and {name}")
        numbered = [re.fullmatch(r"(.*\D)[-_ ]\d+", name) for name in names]
        bases = {match.group(1) for match in numbered if match}
        if all(numbered) and 1 < len(bases) < len(names):
            self.suspect(
                "classes that differ only in a last number, as of instances", " and ".join(names[:2])
            )
        most = max(counts, key=lambda one: one[1], default=None)
        least = min(counts, key=lambda one: one[1], default=None)
        if most and least and most[1] > IMBALANCE * max(least[1], 1):
            self.suspect(
                f"a class has over {IMBALANCE} times the {unit} of another",
                f"{most[0]} ({most[1]}) and {least[0]} ({least[1]})",
            )

    def check(self, strict: bool) -> None:
        """Raises UserError if `strict` and something is suspicious; the message names one example of each kind."""
        if strict and self.suspicious:
            fix = "correct the files or leave --strict out"
            raise UserError(f"--strict: suspicious: {'; '.join(self.summaries('suspicious'))}; {fix}")

    def summaries(self, kind: str) -> list[str]:
        """Returns a line for each finding of a kind ("left_out", "skipped", "changed", "suspicious"), in order."""
        findings: Mapping[str, Finding] = getattr(self, kind)
        return [
            printable(f"{reason}: {one.count}, such as {one.example}") for reason, one in findings.items()
        ]

    def as_json(self) -> dict[str, Any]:
        """Returns plain values, for NAME."""
        kinds = ("left_out", "skipped", "changed", "suspicious")
        plain = {
            kind: {reason: dataclasses.asdict(one) for reason, one in getattr(self, kind).items()}
            for kind in kinds
        }
        values = {what: {"value": value, "by": by} for what, (value, by) in self.choices.items()}
        return {"taken": dict(self.totals), "chosen": values, **plain}

    def write(self, out: Path) -> Path:
        """Writes OUT/report.json; returns its path. Raises UserError if the folder cannot be written."""
        path = out / NAME
        # A file name that is not UTF-8 becomes an escape.
        text = json.dumps(self.as_json(), indent=1, ensure_ascii=False) + "\n"
        write_atomically(path, text.encode(errors="backslashreplace"))
        return path


def _add(findings: dict[str, Finding], reason: str, example: str, count: int) -> None:
    one = findings.setdefault(reason, Finding(0, str(example)))
    one.count += count
