"""Reads the tables of published results, and finds how earlier rounds spell an accelerator or a processor.

One part should have one name in the results tables: the working group asks for a warning before the deadline
(mlcommons/training #886, for v6.1).
"""

import csv
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from difflib import SequenceMatcher
from functools import cache
from pathlib import Path

_DATA = Path(__file__).parents[1] / "data"
_FIELDS = ("accelerator_model_name", "host_processor_model_name")
_ALIKE = 0.6  # the least share of letters that two names of one part have in common
# A model's number: three digits or more, with the letter before and up to two behind, as in a100, mi300x, 8480c.
_MODEL = re.compile(r"([a-z]?)(\d{3,})(?!\d|gb|tb|ghz|mhz|w\b|core)([a-z]{0,2}\+?)")
_MEMORY = re.compile(r"\d+(?=gb)")


def table(name: str) -> list[dict[str, str]]:
    """Returns the rows of one of the files of published data."""
    with (_DATA / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _plain(name: str) -> str:
    """ "AMD Instinct MI-300X 192 GB" -> "amdinstinctmi300x 192gb": a space only before a number, after one."""
    text = re.sub(r"\((r|tm)\)|[^a-z\d+]", " ", name.casefold()[:200])
    return re.sub(r"(?<!\d) | (?!\d)", "", " ".join(text.split()))


def _same_model(ours: str, theirs: str) -> bool:
    models, others = (set(_MODEL.findall(text)) for text in (ours, theirs))
    memory, other = ({*_MEMORY.findall(text)} for text in (ours, theirs))
    if memory and other and memory.isdisjoint(other):
        return False
    return bool(models) and all(
        any(number == n and end == e and (not start or start == s) for s, n, e in others)
        for start, number, end in models
    )


@cache
def _published(field: str) -> Counter[str]:
    return Counter(row[field] for row in table("published_systems.csv") if row[field])


def other_spellings(description: Mapping[str, object]) -> Iterator[tuple[str, str, str]]:
    """Yields (field, name, the name that earlier rounds have) where a description spells a published part otherwise."""
    for field in _FIELDS:
        name, spellings = description.get(field), _published(field)
        if not isinstance(name, str) or not name.strip() or name in spellings:
            continue
        ours = _plain(name)
        alike = [
            (share, count, other)
            for other, count in spellings.items()
            if _same_model(ours, theirs := _plain(other))
            and ((share := SequenceMatcher(None, ours, theirs).ratio()) >= _ALIKE or ours in theirs)
        ]
        if alike:
            yield field, name, max(alike)[2]
