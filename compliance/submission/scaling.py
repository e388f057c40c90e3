"""Decides the factor of a folder's score: the convergence test's own, or a larger one in scaling.json.

training_rules.adoc, "Score scaling": the review committee may scale a score by a file scaling.json. "Reference
Convergence Points": a score that passes the test faster than the reference's mean is normalized to it. So the file may
raise the test's factor, and never lower it.
"""

import json
from pathlib import Path
from typing import NamedTuple

from compliance.log.logs import number, shown
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


def factor(folder: Path, judged: Convergence | None) -> Factor:
    """Returns the factor of a folder's score, at least that of the convergence test.

    Args:
      folder: the folder of runs.
      judged: the convergence test's result; None if there is no such test.
    """
    own = judged.scaling if judged is not None and judged.verdict == rcp.PASS else 1.0
    source = "the convergence test" if own > 1 else ""
    try:
        text = read_small(folder / NAME, _MAX_BYTES)
    except FileNotFoundError:
        return Factor(own, source)
    except (OSError, ValueError) as error:
        said = reason_of(error) if isinstance(error, OSError) else str(error)
        return Factor(own, source, f"cannot be read: {said[:80]}")
    try:
        content = json.loads(text.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        return Factor(own, source, f"not JSON: {str(error)[:80]}")
    if not isinstance(content, dict) or "scaling_factor" not in content:
        return Factor(own, source, f"no scaling_factor: {shown(content)}")
    given, text = number(content["scaling_factor"]), shown(content["scaling_factor"])
    if given is None or given <= 0:
        return Factor(own, source, f"scaling_factor {text}, not a positive number")
    digits = len(repr(given).partition(".")[2])
    # The test's own factor, written with fewer digits, as 1.074 for 1.074063 in training_results_v3.1 (ASUSTeK).
    if digits > 1 and own - 10**-digits < given < own:
        return Factor(own, source)
    if given < own * (1 - _CLOSE):
        least = "the least factor" if own == 1 else "the convergence test's own factor"
        return Factor(own, source, f"scaling_factor {given:.10g}, less than {own:.10g}, {least}")
    return Factor(given, NAME if given != 1 else "")
