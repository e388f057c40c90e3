"""Watches which files of a run's data are opened and read before `run_start`, whichever process or library does so.

`observe` starts a run of cpu-tiny and lets the kernel report accesses (inotify), until the run reads its first data on
the clock. The kernel keeps the order of all reports of one instance, so a file that the run makes when it has logged
`run_start` divides them. `python -m tests.before_the_clock MARK BENCHMARK FLAGS` is that run.
"""

import ctypes
import dataclasses
import os
import pathlib
import select
import struct
import subprocess
import sys
import time
from collections.abc import Iterator

# <sys/inotify.h>
_IN_ACCESS, _IN_OPEN, _IN_CREATE, _IN_ISDIR = 0x1, 0x20, 0x100, 0x40000000
_IN_Q_OVERFLOW = 0x4000
_EVENT = struct.Struct("iIII")
# Our own notes, which say what the files of the data hold.
NOTES = {"records.json", "convert.json", "description.json", "tiny.json"}
# Lengths of documents, which the rules let a run read ("Other Uses of Data", training_rules.adoc).
_INDEX = ".idx"
ROOT = pathlib.Path(__file__).resolve().parents[1]


def is_note(name: str) -> bool:
    """Whether a run may read the file before the clock."""
    return name in NOTES or name.endswith(_INDEX)


@dataclasses.dataclass
class Observed:
    """Names of the files that a run opened or read, relative to the data folder.

    Attributes:
      before: until `run_start` was in the log.
      after: the first ones on the clock.
      started: whether `run_start` was reached.
    """

    before: set[str]
    after: set[str]
    started: bool

    def data_before(self) -> set[str]:
        """Returns the files of the data that were touched before the clock: all but our own notes, and indices."""
        return {name for name in self.before if not is_note(pathlib.PurePath(name).name)}


class Watch:
    """Reports accesses to the files below some folders, in their order."""

    def __init__(self, *folders: pathlib.Path):
        libc = ctypes.CDLL(None, use_errno=True)
        self._file = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._file < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")
        self._folders: dict[int, pathlib.Path] = {}
        for top in folders:
            for folder, _, _ in os.walk(top):
                mask = _IN_ACCESS | _IN_OPEN | _IN_CREATE
                number = libc.inotify_add_watch(self._file, os.fsencode(folder), mask)
                if number < 0:
                    raise OSError(ctypes.get_errno(), f"inotify_add_watch {folder}")
                self._folders[number] = pathlib.Path(folder)

    def close(self) -> None:
        os.close(self._file)

    def accesses(self, seconds: float) -> Iterator[pathlib.Path]:
        """Yields the files of the accesses of the next `seconds`, fewer where some come at once."""
        if not select.select([self._file], [], [], seconds)[0]:
            return
        data, at = os.read(self._file, 1 << 20), 0
        while at < len(data):
            number, mask, _, length = _EVENT.unpack_from(data, at)
            name = data[at + _EVENT.size : at + _EVENT.size + length].rstrip(b"\0").decode()
            at += _EVENT.size + length
            assert not mask & _IN_Q_OVERFLOW, "the kernel has dropped reports"
            if name and not mask & _IN_ISDIR:  # Listing a folder shows names alone.
                yield self._folders[number] / name


def observe(
    benchmark: str, data_dir: pathlib.Path, scratch: pathlib.Path, *flags: str, seconds: float = 900
) -> Observed:
    """Runs cpu-tiny until it reads data on the clock, then ends it.

    Args:
      benchmark: the benchmark's name.
      data_dir: its generated data.
      scratch: an empty folder for the results.
      flags: more flags of the command line.
      seconds: after which the run is ended in any case.
    """
    mark = scratch / "mark" / "run_start"
    mark.parent.mkdir()
    actual = Observed(set(), set(), False)
    watch = Watch(data_dir, mark.parent)
    command = [sys.executable, "-m", "tests.before_the_clock", str(mark), benchmark]
    command += ["--system=cpu-tiny", f"--data_dir={data_dir}", f"--result_dir={scratch / 'results'}", *flags]
    with open(scratch / "output.txt", "wb") as output:
        run = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output)
        try:
            end = time.monotonic() + seconds
            while time.monotonic() < end and not actual.after:
                ended = run.poll() is not None
                paths = list(watch.accesses(0.5))
                for path in paths:
                    if path == mark:
                        actual.started = True
                    else:
                        name = path.relative_to(data_dir).as_posix()
                        (actual.after if actual.started else actual.before).add(name)
                if ended and not paths:
                    break
        finally:
            run.kill()
            run.wait()
            watch.close()
    return actual


def main() -> None:
    """Runs a benchmark's command line, and makes the file MARK when `run_start` is in the log."""
    mark, benchmark, *flags = sys.argv[1:]
    from common.train import events
    from timetotrain.run import cli, mllog

    write = mllog.RunLog.record

    def marked(self: mllog.RunLog, event: events.Event) -> None:
        write(self, event)
        if isinstance(event, events.RunStarted):
            pathlib.Path(mark).touch()

    mllog.RunLog.record = marked
    sys.argv = [benchmark, *flags]
    cli.main(benchmark)


if __name__ == "__main__":
    main()
