"""The one exception that reaches a person as a line, not as a traceback."""

from __future__ import annotations


class UserError(Exception):
    """Bad input or a bad environment: the message names the cause and the fix, in one line.

    Command lines print the message to standard error and exit with `exit_code`.
    """

    def __init__(self, message: str, exit_code: int = 2):
        super().__init__(" ".join(str(message).split()))
        self.exit_code = exit_code
