"""Checks the runs of one directory together: benchmark, division, number of runs, seeds, copies."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from compliance.findings import ADVICE, ERROR, Finding, finding
from compliance.hints import nearest
from compliance.log import rules
from compliance.log.check_log import LogResult
from compliance.log.logs import shown
from compliance.submission.tree_files import reason_of, unchecked


def one_directory(path: Path, benchmark: str | None, group: list[LogResult]) -> Iterator[Finding]:
    """Checks that the logs of a directory agree with its name and with each other, and give a score.

    Args:
      path: the directory, as findings show it.
      benchmark: the one that the directory's name gives; None where the level of benchmarks is missing.
      group: the results of its logs; at least one.
    """
    if benchmark is None:
        wanted = "results/<system>/<benchmark>/result_<i>.txt"
        yield finding("tree.layout", ADVICE, path, wanted, str(path))
        return
    ruleset = group[0].ruleset
    own = ruleset in rules.OWN_RULESETS
    if own and benchmark not in (known := rules.benchmarks(ruleset)):
        near = nearest(benchmark, known)
        wording = "tree.benchmark-unknown" + (".near" if near else "")
        names = {"wording": wording, "near": near}
        yield finding("tree.benchmark-unknown", ERROR, path, ", ".join(known), benchmark, **names)
    for one in group:
        if isinstance(one.benchmark, str) and one.benchmark != benchmark:
            found = one.benchmark[:80]
            yield finding("tree.benchmark", ERROR, one.path, benchmark, found, benchmark=found)
    divisions = {result.division for result in group if isinstance(result.division, str)}
    if len(divisions) > 1:
        yield finding("tree.division", ERROR, path, "one division", " and ".join(sorted(divisions)))
    wanted = rules.metric(ruleset, benchmark).get("runs") if own else None
    if wanted is None:
        return
    if len(group) != wanted:
        names = {"benchmark": benchmark, "runs": wanted}
        yield finding("tree.run-count", ADVICE, path, f"{wanted} runs", str(len(group)), **names)
    if failed := sum(not result.passes or not result.met for result in group):
        score = "it counts as the dropped slowest" if failed == 1 < len(group) else "there is no score"
        found = f"{failed} of {len(group)}: {score}"
        yield finding("tree.score", ADVICE, path, "at most one run without a valid result", found)


def duplicates(results: list[LogResult]) -> Iterator[Finding]:
    """Reports logs that are copies of each other, in any directories."""
    by_size: dict[int, list[LogResult]] = defaultdict(list)
    for result in results:
        with suppress(OSError):  # a file that is gone or unreadable has a finding of its own
            by_size[os.path.getsize(result.path)].append(result)
    by_content: dict[str, list[str]] = defaultdict(list)
    for group in by_size.values():
        for result in group if len(group) > 1 else ():
            try:
                by_content[_digest(result.path)].append(result.path)
            except OSError as error:
                if not any(
                    one.rule == "not-checked" for one in result.findings
                ):  # else it is reported already
                    yield unchecked(result.path, "this file", reason_of(error), "make it readable")
    for first, *copies in by_content.values():
        for copy in copies:
            near = Path(first).parent == Path(copy).parent
            found = f"the bytes of {Path(first).name if near else first}"
            yield finding("tree.duplicate", ADVICE, copy, "one log for each run", found)


def same_seed(path: Path, group: list[LogResult]) -> Iterator[Finding]:
    """Reports runs of one directory that began from the same seed."""
    by_seed: dict[str, list[str]] = defaultdict(list)
    for result in group:
        if result.seed is not None:
            by_seed[shown(result.seed)].append(Path(result.path).name)
    for seed, members in by_seed.items():
        if len(members) > 1:
            found = f"seed {seed} in {', '.join(members[:10])}"
            yield finding("tree.seed", ADVICE, path, "a different seed for each run", found)


def _digest(path: str) -> str:
    digest = sha256()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
