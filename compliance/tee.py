"""Copies what a program writes to standard output and error into its result file, too.

From round 6.1 on a result file holds the framework's whole output beside its records (training_rules.adoc, "Result
files", mlcommons/training_policies #588). The copying is a process of its own: it also gets what libraries write that
are not Python, cannot block the program, and copies to the end when the program is killed.
"""

import contextlib
import os
import selectors
import signal
import subprocess
import sys

_MOST = 100 << 20  # bytes of output that the rules ask for at most
_MARK, _HARMLESS = b":::MLL", b"::MLL"  # output that looks like a record would break the log
_WAIT = 5.0  # seconds for the last output, which a forked process may hold open


class Tee:
    """Copies file descriptors 1 and 2 of this process into a file, line by line, until `close`."""

    def __init__(self, path: str | os.PathLike) -> None:
        self._saved = {number: os.dup(number) for number in (1, 2)}
        pipes = {number: os.pipe() for number in self._saved}
        readers = [reader for reader, _ in pipes.values()]
        command = [sys.executable, "-S", "-E", __file__, os.fspath(path), *map(str, readers)]
        self._process = subprocess.Popen(command, pass_fds=readers)
        _flush()
        for number, (reader, writer) in pipes.items():
            os.dup2(writer, number)
            os.close(writer)
            os.close(reader)

    def close(self) -> None:
        """Ends the copying; what was written before is in the file."""
        _flush()
        for number, saved in self._saved.items():
            os.dup2(saved, number)
            os.close(saved)
        self._saved = {}
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_WAIT)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()


def main(path: str, readers: list[int]) -> None:
    """Copies from two pipes to standard output and error, and whole lines of both to a file."""
    # What ends the program, or stops it at a terminal: its last lines are still to come.
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    file, room = os.open(path, os.O_WRONLY | os.O_APPEND), _MOST
    pieces = dict.fromkeys(readers, b"")
    with selectors.DefaultSelector() as waiting:
        for reader, target in zip(readers, (1, 2)):
            waiting.register(reader, selectors.EVENT_READ, target)
        while waiting.get_map():
            for key, _ in waiting.select():
                data = os.read(key.fd, 1 << 16)
                with contextlib.suppress(OSError):  # a closed terminal
                    os.write(key.data, data)
                lines, _, rest = (pieces[key.fd] + data).rpartition(b"\n")
                if not data:
                    waiting.unregister(key.fd)
                    lines, rest = (lines + b"\n" if lines else b"") + rest, b""
                pieces[key.fd] = rest
                if lines and room > 0:
                    room -= os.write(file, lines.replace(_MARK, _HARMLESS)[:room] + b"\n")


if __name__ == "__main__":
    main(sys.argv[1], [int(number) for number in sys.argv[2:]])
