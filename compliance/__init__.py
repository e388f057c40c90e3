"""Checks MLPerf Training logs and submission trees, explains the rules, writes reports, and builds packages.

`timetotrain check` is the command line; `from compliance import check` is the library (compliance/api.py);
`compliance.log.engine` checks a log while it is being written. Does not use TensorFlow: a command imports only the
standard library until it needs more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from compliance.api import Outcome, Verdict, check

__all__ = ["Outcome", "Verdict", "check"]


def __getattr__(name: str) -> object:
    # Imported on first use: `timetotrain rules` needs no checker.
    if name in __all__:
        from compliance import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
