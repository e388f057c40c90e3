"""Builds the table of a review: one row for each folder of runs, with verdict, scores, energy, points and flags."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

from common.errors import UserError
from compliance.api import Outcome, check
from compliance.findings import ERROR, Finding
from compliance.log.check_log import LogResult
from compliance.log.find_round import of_folder
from compliance.power import command as power
from compliance.power import power_logs
from compliance.report import index
from compliance.report.published import published_score
from compliance.review import points, uploads
from compliance.review.points import Origin
from compliance.review.uploads import Change
from compliance.submission import scaling, summary, tree_runs
from compliance.submission.summary import Result, System
from compliance.verdict import Verdict

COLUMNS = (
    "organisation", "system", "benchmark", "division", "accelerators", "verdict", "errors", "flags", "runs", "needed",
    "failed", "raw_minutes", "factor", "factor_from", "minutes", "published_minutes", "kilojoules", "stock_kilojoules",
    "batch", "convergence", "margin", "points", "in_time", "uploaded_as",
)  # fmt: skip


@dataclass
class Review:
    """A round: its rows, each organisation's verdict, what changed between uploads, and the points that were used."""

    ruleset: str = ""
    deadline: date | None = None
    rows: list[dict[str, object]] = field(default_factory=list)
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    origins: Counter[Origin] = field(default_factory=Counter)

    @property
    def vanished(self) -> list[Change]:
        return [one for one in self.changes if one.kind == "vanished"]


def review(trees: Sequence[Path], ruleset: str | None = None, deadline: date | None = None) -> Review:
    """Merges and judges the uploads.

    Args:
      trees: a round's folder, or submitters' folders, oldest first.
      ruleset: the round; None: find it from the folders' names and the logs.
      deadline: the last day of submissions; None: the day in `points.DEADLINES`.

    Raises UserError: a tree holds no submission, or the submissions are of several rounds.
    """
    sent, left_out = uploads.find(trees)
    if ruleset is None:
        named = {choice.ruleset for one in sent if (choice := of_folder(one.path))}
        if len(named) > 1:
            rounds = ", ".join(sorted(named))
            raise UserError(f"folders of rounds {rounds}; name those of one, or give --ruleset")
        ruleset = named.pop() if named else None
    whole, logs, seen = Review(deadline=deadline, changes=left_out), [], set()
    with tempfile.TemporaryDirectory(prefix="review-") as place:
        for name, group in uploads.organisations(sent).items():
            folder, changes, sources = uploads.merge(name, group, Path(place))
            whole.changes += changes
            outcome = check([folder], ruleset)
            logs += outcome.logs
            seen.update((one.rule, one.path, one.found) for one in outcome.findings)
            whole.verdicts[name] = outcome.verdict
            _add(whole, name, outcome, sources, folder)
        whole.remarks += _copies(logs, seen, place)
    used = {one.ruleset for one in logs if one.ruleset}
    if ruleset is None and len(used) > 1:
        raise UserError(f"logs of rounds {', '.join(sorted(used))}; give --ruleset")
    whole.ruleset = ruleset or next(iter(used), "")
    return whole


def _copies(logs: list[LogResult], seen: set[tuple[str, str, str]], place: str) -> list[str]:
    """Says which logs two organisations share; copies inside one are findings of its own."""
    copies = [one for one in tree_runs.duplicates(logs) if (one.rule, one.path, one.found) not in seen]
    return [f"{one.path}: {one.message} {one.found}".replace(f"{place}/", "") for one in copies]


def _add(whole: Review, name: str, outcome: Outcome, sources: dict[str, str], folder: Path) -> None:
    """Adds an organisation's rows, and the points that its folders were compared with."""
    systems = summary.systems(outcome)
    pairs = [(one, result) for one in systems for result in one.results.values()]
    by_folder, rest = index.by_folder(outcome, [Path(result.folder.path) for _, result in pairs])
    for (system, result), findings in zip(pairs, by_folder):
        used = points.compared(result.folder.benchmark, result.folder.ruleset, result.folder.convergence)
        whole.origins.update(used)
        entry = f"{system.name}/{result.folder.benchmark}"
        source = Path(sources.get(entry, folder)).name
        due = points.due(result.folder.benchmark, result.folder.ruleset, whole.deadline)
        whole.rows.append(_row(name, system, result, findings, used, due, source))
    whole.remarks += [f"{name}: {one.message} {one.found}" for one in rest if one.severity == ERROR]
    if not pairs:
        whole.remarks.append(f"{name}: {outcome.verdict.line}")


def _row(
    name: str, system: System, result: Result, findings: list[Finding], used: tuple[Origin, ...], due: date | None,
    source: str,
) -> dict[str, object]:  # fmt: skip
    """Returns one folder of runs by the columns of the CSV file; None is an empty cell.

    `minutes` is the score, `raw_minutes` the score without its `factor`. `kilojoules` is the score of energy by the
    rules, `stock_kilojoules` that of the stock summarizer; both with the factor. `margin` is how far the runs'
    convergence is above the least that the test accepts, as a part of it. `points` are the points of that test, and
    `in_time` whether all came in time. `flags` are the rules of advice that the folder meets, `errors` those of errors.
    """
    folder, card = result.folder, result.card
    shown = index.row(card, findings, folder)
    judged, score = folder.convergence, card.score
    joules = stock = None
    if power_logs.kind(folder.path) == power_logs.MEASURED:
        with suppress(UserError):  # an unreadable power log is a finding
            energies = power.row_of(folder.path, folder.ruleset)
            joules, stock = energies.score, energies.stock_score
    cells = (
        name, system.name, folder.benchmark, folder.division, system.accelerators, shown["verdict"].answer,
        _listed(one.rule for one in findings if one.severity == ERROR),
        _listed(one.rule for one in findings if one.severity != ERROR), len(folder.paths), folder.needed,
        shown["failed"],
        None if score is None else score / card.scaling, card.scaling, scaling.factor(folder.path, judged).source,
        score, published_score(card.ruleset, name, card.system, card.benchmark),
        None if joules is None else joules / 1000, None if stock is None else stock / 1000, folder.batch,
        judged.verdict if judged else "", judged.margin if judged else None, "; ".join(one.text for one in used),
        points.in_time(used, due), source,
    )  # fmt: skip
    return dict(zip(COLUMNS, cells, strict=True))


def _listed(rules: Iterable[str]) -> str:
    counted = sorted(Counter(rules).items())
    return " ".join(f"{rule}({count})" if count > 1 else rule for rule, count in counted)
