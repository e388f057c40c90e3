"""Errors that commands print as one line instead of a traceback, and spelling hints for their messages."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence


class UserError(Exception):
    """Bad input or a bad environment: the message names the cause and the fix, in one line.

    Command lines print the message to standard error and exit with `exit_code`. The message escapes control
    characters, because a file's name or content can carry them to a terminal.
    """

    def __init__(self, message: str, exit_code: int = 2):
        super().__init__(printable(" ".join(str(message).split())))
        self.exit_code = exit_code


class PeerLostError(UserError):
    """Another process of the run ended or stopped answering; that process's own message says why."""

    def __init__(self) -> None:
        # 75 is EX_TEMPFAIL in sysexits.h: nothing is wrong here, try again.
        super().__init__(
            "another process of this run ended or no longer answers; its own message says why", 75
        )


def counted(count: int, what: str) -> str:
    """Returns "1 broken file", "2 broken files"."""
    return f"{count} {what}{'s' if count != 1 else ''}"


def printable(text: str) -> str:
    """Escapes the characters that a terminal would obey instead of show."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


@contextlib.contextmanager
def one_line(what: str, fix: str, passing: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Turns any exception that an untrusted file causes into a one-line UserError; `passing` exceptions go through.

    It catches everything because a file that describes a network can make any layer raise anything.
    """
    try:
        yield
    except (UserError, *passing):
        raise
    except MemoryError as error:
        raise UserError(f"{what}: asks for more memory than there is; {fix}") from error
    except Exception as error:
        reason = next(iter(str(error).splitlines()), "")[:200]
        raise UserError(f"{what}: {type(error).__name__}: {reason}; {fix}") from error


def near(name: str, known: Sequence[str]) -> str:
    """Returns " (did you mean x, y?)" with the entries of `known` that resemble `name`, or "" if none does."""
    import difflib  # Imported late: commands that must start fast import this module.

    close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    return f" (did you mean {', '.join(close)}?)" if close else ""
