"""Errors that every command prints as one line instead of a traceback, the parser that raises them, and hints."""

import argparse
import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn


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

    def __init__(
        self,
        message: str = "another process of this run ended or no longer answers; its own message says why",
    ):
        super().__init__(message, 75)  # EX_TEMPFAIL in sysexits.h: nothing is wrong here, try again.


class NoAnswerError(UserError):
    """Another process does not answer at the start; the launcher may try again."""

    def __init__(self, message: str):
        super().__init__(message, 75)  # EX_TEMPFAIL in sysexits.h.


def answer(error: BaseException) -> tuple[str, int]:
    """Returns the line that says an error, and its exit status."""
    if isinstance(error, UserError):
        return str(error), error.exit_code
    return printable(f"{type(error).__name__}: {error}".splitlines()[0].rstrip(": ")), 1


class Parser(argparse.ArgumentParser):
    """A parser that raises UserError and suggests similar names for an unknown flag; only --help prints the usage."""

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **{"allow_abbrev": False, **options})

    def parse_known_args(
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """As argparse's; takes `--data-dir` for `--data_dir`, up to a word `--`."""
        words = list(sys.argv[1:] if args is None else args)
        end = words.index("--") if "--" in words else len(words)
        return super().parse_known_args([*map(self._underscored, words[:end]), *words[end:]], namespace)

    def _underscored(self, word: str) -> str:
        name, equals, value = word.partition("=")
        other = "--" + name[2:].replace("-", "_")
        options = self._option_string_actions
        return (
            other + equals + value
            if name.startswith("--") and name not in options and other in options
            else word
        )

    def error(self, message: str) -> NoReturn:
        """Raises UserError."""
        unknown = message.partition("unrecognized arguments: ")[2].split(" ")[0].partition("=")[0]
        options = [name for action in self._actions for name in action.option_strings]
        hint = near(unknown, options) if unknown.startswith("-") else ""
        raise UserError(f"{message}{hint}; see {self.prog} --help")


def answering(
    fix: str = "make it writable or free some space", interrupted: str = "interrupted"
) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Returns a decorator of a command's `main`, which returns the exit status: an error becomes one line.

    The status is 2 or the error's own, 130 after Ctrl-C, and 141 if the output's reader (head, less) closed the pipe.

    Args:
      fix: what helps against a file that cannot be written or read.
      interrupted: what Ctrl-C prints.
    """

    def decorated(main: Callable[..., int]) -> Callable[..., int]:
        @functools.wraps(main)
        def answer(*args: Any, **options: Any) -> int:
            open_closed_streams()
            try:
                status = main(*args, **options)
                sys.stdout.flush()
                return status
            except UserError as error:
                print(f"error: {error}", file=sys.stderr)
                return error.exit_code
            except BrokenPipeError:
                _silence()
                return 141
            except OSError as error:
                place = printable(f"{error.filename or 'standard output'}: {error.strerror or error}")
                print(f"error: {place}; {fix}", file=sys.stderr)
                _silence()
                return 2
            except KeyboardInterrupt:
                print(f"error: {interrupted}", file=sys.stderr)
                return 130

        return answer

    return decorated


class _Outlived:
    """A stream whose reader may go: a terminal that hangs up, a pipe that closes, a full disk. Writes fail silently."""

    def __init__(self, stream: Any):
        self._stream = stream

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            self._stream.write(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def outlive_output() -> None:
    """Lets this process go on when nobody takes its output any more."""
    sys.stdout, sys.stderr = _Outlived(sys.stdout), _Outlived(sys.stderr)


def open_closed_streams() -> None:
    """Opens the null device in place of standard streams that the caller closed (`2>&-`), which Python sets to None."""
    if None not in (sys.stdin, sys.stdout, sys.stderr):
        return
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(number)
    for stream, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(stream, mode, closefd=False))


def _silence() -> None:
    """Keeps Python from writing the rest of the output at exit."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        return
    with contextlib.suppress(OSError, ValueError):  # Under pytest, standard output may have no file.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def counted(count: int, what: str) -> str:
    """Returns "1 broken file", "2 broken files"."""
    return f"{count} {what}{'s' if count != 1 else ''}"


def printable(text: str) -> str:
    """Escapes the characters that a terminal would obey instead of show."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


@contextlib.contextmanager
def one_line(subject: str, fix: str, passing: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Turns any exception that an untrusted file causes into a one-line UserError; `passing` exceptions go through.

    It catches everything because a file that describes a network can make any layer raise anything.
    """
    try:
        yield
    except (UserError, *passing):
        raise
    except MemoryError as error:
        raise UserError(f"{subject}: asks for more memory than there is; {fix}") from error
    except Exception as error:
        reason = next(iter(str(error).splitlines()), "")[:200]
        raise UserError(f"{subject}: {type(error).__name__}: {reason}; {fix}") from error


def near(name: str, names: Sequence[str]) -> str:
    """Returns " (did you mean x, y?)" with the entries of `names` that resemble `name`, or "" if none does."""
    import difflib  # Imported late: commands that must start fast import this module.

    close = difflib.get_close_matches(name, names, n=3, cutoff=0.55)
    return f" (did you mean {', '.join(close)}?)" if close else ""
