"""A script's bad input as one line."""

from __future__ import annotations

import sys
from collections.abc import Callable

from common.errors import UserError


def status_of(main: Callable[[], int | None]) -> int:
    """The exit status of a script; a `UserError` is printed to standard error and has its own."""
    try:
        return main() or 0
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
