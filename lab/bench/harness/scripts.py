"""What every measuring script needs: bad input in one line, and the output of a program in lab/bench/processes/."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence

from common.errors import UserError
from lab.bench.harness import ROOT

_TIMEOUT_SECONDS = 3600


def status_of(main: Callable[[], int | None]) -> int:
    """Returns a script's exit status. A `UserError` goes to standard error and has its own status."""
    try:
        return main() or 0
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code


def output_of(script: str, command: Sequence[str]) -> str:
    """Returns the standard output of a command that runs in ROOT.

    Raises:
      SystemExit: the command failed; the message names the script and has the last line of standard error.
    """
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS)
    if done.returncode:
        sys.exit(f"{script}: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    return done.stdout
