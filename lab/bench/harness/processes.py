"""Runs a program of lab/bench/processes/ to its end and reads its output."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

from lab.bench.harness import ROOT

_TIMEOUT_SECONDS = 3600


def output_of(script: str, command: Sequence[str]) -> str:
    """Returns the standard output of a command that runs in ROOT.

    Raises:
      SystemExit: the command failed; the message names the script and has the last line of standard error.
    """
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS)
    if done.returncode:
        sys.exit(f"{script}: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    return done.stdout
