"""Formats answers as text and JSON."""

import json

from compliance.acceptance.answer import OPEN, Answer
from compliance.acceptance.whole import Whole
from compliance.sarif import clean


def as_text(found: Whole) -> str:
    """Formats an answer for people: a block for each folder, the answer for the tree on the last line."""
    lines = [line for one in found.answers for line in [*folder_lines(one), ""]]
    return "\n".join(clean(line) for line in [*lines, found.line])


def folder_lines(one: Answer) -> list[str]:
    """Returns the lines about one folder: answer, reasons, advice, the other pruning."""
    lines = [f"{one.name}: {short(one)}"]
    lines += [f"  because {reason}" for reason in one.reasons]
    lines.append(f"  next: {one.advice}")
    if one.both is not None and one.both.note:
        lines.append(f"  prunings differ: {one.both.note}")
    return lines


def short(one: Answer) -> str:
    """Returns answer, runs, probability and factor in a few words."""
    text = f"{one.answer}, {one.runs} of {one.needed} runs"
    if one.answer == OPEN and one.probability is not None:
        text += f", probability {one.probability:.2f}"
    if one.factor is not None and one.factor >= 1.00005:
        text += f", factor {one.factor:.4f}" + (" expected" if one.answer == OPEN else "")
    return text


def as_json(found: Whole) -> str:
    """Formats an answer for programs."""
    content = {
        "answer": found.answer,
        "probability": found.probability,
        "reasons": found.reasons,
        "folders": [_json(one) for one in found.answers],
    }
    return json.dumps(content, indent=1)


def _json(one: Answer) -> dict[str, object]:
    both = one.both
    return {
        "name": one.name,
        "answer": one.answer,
        "runs": one.runs,
        "needed": one.needed,
        "probability": one.probability,
        "factor": one.factor,
        "reasons": one.reasons,
        "advice": one.advice,
        "prunings": {"stock": both.stock._asdict(), "rule": both.rule._asdict(), "note": both.note}
        if both
        else None,
        "estimate": one.estimate._asdict() if one.estimate else None,
    }
