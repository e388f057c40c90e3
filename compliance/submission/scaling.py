"""Decides the factor of a folder's score: the convergence test's own, or a larger one in scaling.json.

training_rules.adoc, "Score scaling": the review committee may scale a score by a file scaling.json. "Reference
Convergence Points": a score that passes the test faster than the reference's mean is normalized to it. So the file may
raise the test's factor, and never lower it.
"""

import json
from pathlib import Path
from typing import NamedTuple

from compliance.log.logs import number, text_of
from compliance.submission import rcp
from compliance.submission.rcp import Convergence
from compliance.submission.tree_files import read_small, reason_of

NAME = "scaling.json"
_MAX_BYTES = 1 << 16
# Files that the stock tools wrote agree with our factor to this part.
_CLOSE = 1e-6


class Factor(NamedTuple):
    """The factor of a score. `source`: where it comes from; `problem`: what is wrong with scaling.json. Or ""."""

    value: float
    source: str = ""
    problem: str = ""


def factor(folder: Path, convergence: Convergence | None) -> Factor:
    """Returns the factor of a folder's score, at least that of the convergence test.

    Args:
      folder: the folder of runs.
      convergence: the convergence test's result; None if there is no such test.
    """
    floor = convergence.scaling if convergence is not None and convergence.verdict == rcp.PASS else 1.0
    source = "the convergence test" if floor > 1 else ""
    try:
        text = read_small(folder / NAME, _MAX_BYTES)
    except FileNotFoundError:
        return Factor(floor, source)
    except (OSError, ValueError) as error:
        reason = reason_of(error) if isinstance(error, OSError) else str(error)
        return Factor(floor, source, f"cannot be read: {reason[:80]}")
    try:
        content = json.loads(text.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        return Factor(floor, source, f"not JSON: {str(error)[:80]}")
    if not isinstance(content, dict) or "scaling_factor" not in content:
        return Factor(floor, source, f"no scaling_factor: {text_of(content)}")
    value, text = number(content["scaling_factor"]), text_of(content["scaling_factor"])
    if value is None or value <= 0:
        return Factor(floor, source, f"scaling_factor {text}, not a positive number")
    digits = len(repr(value).partition(".")[2])
    # The test's own factor, written with fewer digits, as 1.074 for 1.074063 in training_results_v3.1 (ASUSTeK).
    if digits > 1 and floor - 10**-digits < value < floor:
        return Factor(floor, source)
    if value < floor * (1 - _CLOSE):
        least = "the least factor" if floor == 1 else "the convergence test's own factor"
        return Factor(floor, source, f"scaling_factor {value:.10g}, less than {floor:.10g}, {least}")
    return Factor(value, NAME if value != 1 else "")
