"""Follows a folder of runs while their logs grow: `timetotrain accept TREE --watch`.

A poll checks the logs that have grown, and answers again for a folder in which a run began, ended or broke a rule.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

from compliance.acceptance.answer import Answer, answer
from compliance.acceptance.whole import as_text, folder_lines, folders_of, whole
from compliance.api import check
from compliance.log.check_log import LogResult, check_logs, size_of
from compliance.log.find_round import of_folder
from compliance.sarif import clean
from compliance.submission.tree import judge_tree
from compliance.submission.tree_files import kind_of


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
        self._sizes: dict[str, int] = {}
        self._first_sizes: dict[str, int] = {}
        # path -> (size, round, whether the last line was whole or stayed as it is, result)
        self._results: dict[str, tuple[int, str | None, bool, LogResult]] = {}
        self._tree = None
        self._states: dict[Path, list[tuple]] = {}
        self._told: dict[Path, set[str]] = defaultdict(set)  # the rules of errors that a folder's lines named

    def poll(self) -> list[str]:
        """Checks the logs that have grown; returns lines to print, [] if nothing changed."""
        logs = [path for path in self.root.rglob("result_*.txt") if kind_of(path) == "file"]
        sizes = {str(path): size_of(path) for path in logs}
        if sizes != self._sizes or not all(settled for *_, settled, _ in self._results.values()):
            self._sizes = sizes
            self._tree = judge_tree(self.root, self.ruleset, None, self._check)
        if not sizes:
            return []
        # A log that grows is under way, whatever its clock says; the first look cannot tell.
        growing = {path for path, size in sizes.items() if self._first_sizes.setdefault(path, -1) != size}
        self._first_sizes |= {path: sizes[path] for path in growing if self._first_sizes[path] == -1}
        lines: list[str] = []
        of_tree = self._tree.submissions, self._tree.logs, (self.clock(), self.stale), growing
        for name, folder, logs, *more in folders_of(*of_tree):
            path = folder.path
            # Without a named round, the header of a log that has no run_start may suggest another one later.
            logs = [log for log in logs if self.ruleset or log.ended or log.run.started is not None]
            state = [(log.name, log.ended, len(log.errors), log.run.started) for log in logs]
            if not logs or state == self._states.get(path):
                continue
            self._states[path], told = state, set(self._told[path])
            for log in logs:
                for error in log.errors:
                    if error.rule not in told:
                        self._told[path].add(error.rule)
                        line = f" line {error.line}" if error.line else ""
                        lines.append(f"{path.name}/{log.name}{line}: {error.message} ({error.rule})")
            self.answers[path] = answer(name, folder, logs, *more)
            lines += folder_lines(self.answers[path])
        return lines

    def _check(self, paths: Sequence[str], ruleset: str | None, division: str | None) -> list[LogResult]:
        """Checks the logs whose size has changed. Half a line at the end is no error until the log stays as it is."""
        waiting = []
        for path in paths:
            size, known = size_of(path), self._results.get(path)
            if known is None or known[:3] != (size, ruleset, True):
                settled = _ends_a_line(path) or (known is not None and known[0] == size)
                waiting.append((path, size, settled))
        checked = check_logs([path for path, *_ in waiting], ruleset)
        for (path, size, settled), result in zip(waiting, checked):
            findings = [one for one in result.findings if settled or not one.rule.startswith("line-")]
            self._results[path] = (size, ruleset, settled, result._replace(findings=findings))
        return [self._results[path][3] for path in paths]

    @property
    def done(self) -> bool:
        """Whether every folder has all its runs."""
        return bool(self.answers) and all(one.runs >= one.needed for one in self.answers.values())


def _ends_a_line(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            file.seek(-1, 2)
            return file.read(1) == b"\n"
    except OSError:  # an empty file, or one that has gone
        return True


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
    last = whole(check([root], ruleset), stale_minutes=stale_minutes)
    show(as_text(last))
    return last.answer
