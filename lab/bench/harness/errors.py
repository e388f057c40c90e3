"""Reports a script's bad input in one line."""

from __future__ import annotations

import sys
from collections.abc import Callable

from common.errors import UserError


def status_of(main: Callable[[], int | None]) -> int:
    """Returns a script's exit status. A `UserError` goes to standard error and has its own status."""
    try:
        return main() or 0
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
