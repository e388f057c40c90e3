"""Several runs on one machine: what gives each its part of the cores."""

from __future__ import annotations

import os


def share(runs: int) -> dict[str, str]:
    """Environment of one of `runs` processes that train at a time; empty where a run has the machine alone."""
    if runs == 1:
        return {}
    threads = str(max(len(os.sched_getaffinity(0)) // runs, 1))
    return {"TF_NUM_INTRAOP_THREADS": threads, "TF_NUM_INTEROP_THREADS": threads}
