"""Follows a folder of runs while their logs grow: `timetotrain accept TREE --watch`.

A poll reads only the bytes that are new. A folder's answer is made again when one of its runs begins, ends or breaks a
rule.
"""

import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from common.errors import UserError
from compliance.acceptance.answer import Answer, Folder, Log, answer, ended
from compliance.acceptance.whole import as_text, folder_lines, whole
from compliance.api import check
from compliance.findings import ERROR, Finding
from compliance.log.check_log import check_log
from compliance.log.engine import MAX_HELD, StreamChecker
from compliance.log.find_round import find, of_folder
from compliance.log.lines import MAX_LINE_BYTES, scan, split
from compliance.log.logs import parse_all
from compliance.sarif import clean
from compliance.submission import rcp, rounds, tree_params
from compliance.submission.facts import Facts, FactsReader
from compliance.submission.tree_files import kind_of, place_of

_READ_BYTES = 8 << 20  # at a time


class Tail:
    """One log that grows.

    Args:
      ruleset: the round; None: find it once the log has `run_start`.
    """

    def __init__(self, path: Path, ruleset: str | None) -> None:
        self.path, self._asked = path, ruleset
        self._size: int | None = None  # at the last look
        self._grew = False  # since the first look
        self._reset()

    def _reset(self) -> None:
        """Begins at the start of the file."""
        self.ruleset = self._asked
        self.errors: dict[str, Finding] = {}  # by rule, the first of each
        self.facts = Facts(str(self.path))
        self.ended = False
        self._offset, self._line, self._judged = 0, 1, 0
        self._skipping = False  # within a line that is too long to be a record
        self._held: list[tuple[int, bytes]] = []
        self._checker: StreamChecker | None = None
        self._reader: FactsReader | None = None
        self._begin()

    def poll(self, now: float, stale_minutes: float) -> bool:
        """Reads what is new. Returns whether something changed. The arguments tell whether the run has ended."""
        before = (self.ended, len(self.errors), self.facts.started)
        try:
            stat = self.path.stat()
            if stat.st_size < self._offset or (self.ended and stat.st_size != self._judged):
                self._reset()  # written anew, or the run had not ended
            while stat.st_size > self._offset and self._read():
                pass
        except OSError:
            return False
        except UserError:  # it cannot be read for its round: later from its start
            self._reset()
            return False
        first, self._grew = self._size is None, self._grew or self._size not in (None, stat.st_size)
        self._size = stat.st_size
        # A log that grows is under way, whatever its clock says; the first look cannot tell.
        if not self.ended and ended(
            self.facts, stat.st_mtime, now, stale_minutes, not first and not self._grew
        ):
            self._end()
            self._judged = stat.st_size
        return (self.ended, len(self.errors), self.facts.started) != before

    @property
    def division(self) -> object:
        return self._checker.declared.get("submission_division") if self._checker else None

    def _read(self) -> bool:
        """Reads some whole lines; returns whether there were any."""
        with self.path.open("rb") as file:
            file.seek(self._offset)
            data = file.read(_READ_BYTES)
            if b"\n" not in data:
                data += file.read(MAX_LINE_BYTES + 1 - len(data))
        lines = data[: data.rfind(b"\n") + 1]
        too_long = not lines and len(data) > MAX_LINE_BYTES
        taken = data if too_long else lines
        if self._skipping:
            lines = b"\n" + lines[lines.find(b"\n") + 1 :] if lines else lines
        for number, line in split(scan(lines, self._line)):
            if self._checker is None:
                self._hold(number, line)
            else:
                self._take(number, line)
        self._line += lines.count(b"\n")
        self._offset += len(taken)
        self._skipping = bool(too_long or (self._skipping and not lines))
        return bool(taken)

    def _hold(self, number: int, line: bytes) -> None:
        """Keeps a line of the header until the log tells its round, or has more lines than a header has."""
        self._held.append((number, line))
        if b"run_start" in line or len(self._held) > MAX_HELD:
            self.ruleset = find(self.path).ruleset
            self._begin()
            for held in self._held:
                self._take(*held)
            self._held = []

    def _begin(self) -> None:
        if self.ruleset is not None:
            self._checker = StreamChecker(self.ruleset, path=str(self.path))
            self._reader = FactsReader(self.facts, self.ruleset, False)

    def _take(self, number: int, line: bytes) -> None:
        parsed = parse_all(line.decode("utf-8", "replace"), number)
        for one in parsed:
            self._add(self._checker.feed(one))
        self._reader.take_line(parsed, self.facts.started is not None)

    def _add(self, findings: list[Finding]) -> None:
        for found in findings:
            if found.severity == ERROR:
                self.errors.setdefault(found.rule, found)

    def _end(self) -> None:
        """Checks the log of a run that has ended as a whole."""
        self.ended = True
        if self._reader is not None:
            self._reader.finish()
        try:
            self._add(check_log(str(self.path), self.ruleset).findings)
        except UserError:  # it has gone meanwhile
            self.ended = False


class Watch:
    """The logs of a tree while they grow.

    Args:
      root: the tree.
      ruleset: the round; None: the one in the folder's name, else the one that each log suggests.
      stale_minutes: a log without run_stop that nobody has written to for so long has ended.
      clock: gives seconds since 1970.
    """

    def __init__(
        self, root: Path, ruleset: str | None, stale_minutes: float, clock: Callable[[], float] = time.time
    ) -> None:
        named = of_folder(root)
        self.root, self.ruleset = root, ruleset or (named and named.ruleset)
        self.stale, self.clock = stale_minutes, clock
        self.answers: dict[Path, Answer] = {}
        self._tails: dict[Path, dict[Path, Tail]] = defaultdict(dict)

    def poll(self) -> list[str]:
        """Reads what is new in all logs; returns lines to print, [] if nothing changed."""
        lines: list[str] = []
        for path in sorted(self.root.rglob("result_*.txt")):
            folder = path.parent
            if path not in self._tails[folder] and kind_of(path) == "file":
                self._tails[folder][path] = Tail(path, self.ruleset)
        for folder, tails in self._tails.items():
            known = {rule for tail in tails.values() for rule in tail.errors}
            changed = [tail for tail in tails.values() if tail.poll(self.clock(), self.stale)]
            for tail in changed:
                for rule, found in tail.errors.items():
                    line = f" line {found.line}" if found.line else ""
                    name = f"{tail.path.parent.name}/{tail.path.name}{line}"
                    lines += [] if rule in known else [f"{name}: {found.message} ({rule})"]
            if changed and (found := self._answer(folder, tails)):
                self.answers[folder] = found
                lines += folder_lines(found)
        return lines

    @property
    def done(self) -> bool:
        """Whether every folder has all its runs."""
        return bool(self.answers) and all(one.runs >= one.needed for one in self.answers.values())

    def _answer(self, folder: Path, tails: dict[Path, Tail]) -> Answer | None:
        """Answers for one folder; None while no log of it tells its round, or it is not a folder of a submission."""
        place = place_of(folder.absolute())
        known = [tail for _, tail in sorted(tails.items()) if tail.ruleset is not None]
        if place is None or place[2] is None or not known:
            return None
        org, system, benchmark = place
        ruleset = known[0].ruleset
        division = next((tail.division for tail in known if tail.division), None)
        logs = tuple(Log(tail.facts, tail.ended, tuple(tail.errors)) for tail in known)
        return answer(
            Folder(
                f"{system}/{benchmark}", benchmark, ruleset, rounds.required_runs(benchmark, ruleset),
                rounds.may_fail(benchmark), rcp.applies(ruleset, benchmark, division), logs,
                tree_params.RCP_BYPASS in tree_params.flags(org, folder),
            )
        )  # fmt: skip


def follow(
    root: Path, ruleset: str | None, every: float, stale_minutes: float, show: Callable[[str], None] = print
) -> str:
    """Prints what changes until every folder has its runs; then prints and returns the answer for the whole tree."""
    watch = Watch(root, ruleset, stale_minutes)
    while True:
        for line in watch.poll():
            show(f"{time.strftime('%H:%M:%S')} {clean(line)}")
        if watch.done:
            break
        time.sleep(every)
    found = whole(check([root], ruleset), stale_minutes=stale_minutes)
    show(as_text(found))
    return found.answer
