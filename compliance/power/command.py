"""Implements `timetotrain power TREE`: the energy of runs and its score, by the rules and by the stock tool."""

import argparse
import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from common.errors import UserError
from compliance.log import rules
from compliance.power import checks, power_logs
from compliance.report.output import aligned
from compliance.submission import scores, tree_system
from compliance.submission.tree_files import place_of

INFORMATIVE = (
    "informative: sensors of one host, in band; no measurement by the rules, and no part of a submission"
)


@dataclass(frozen=True)
class Energies:
    """One folder of runs: energies in joules by run, None where one cannot be computed, and the two scores."""

    path: Path
    runs: tuple[str, ...]
    by_rules: tuple[float | None, ...]
    by_stock: tuple[float | None, ...]
    watts: tuple[float | None, ...]
    score: float | None
    stock_score: float | None
    scaling: float
    remarks: tuple[str, ...]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("tree", metavar="TREE", type=Path, help="a submitter's folder, or a folder of runs with power/")
    add("--ruleset", choices=rules.RULESETS, help="default: what the tree and the log say")
    add("--format", choices=("text", "json"), default="text", help="default: %(default)s")


def run(options: argparse.Namespace) -> int:
    """Prints the energies; returns 1 if a folder has no score of energy, else 0.

    Raises UserError: the tree has no power logs.
    """
    folders = filter(power_logs.kind, scores.result_folders(options.tree))
    rows = [row_of(folder, options.ruleset) for folder in folders]
    if not rows:
        place = "results/<system>/<benchmark>/power/"
        raise UserError(f"{options.tree}: no {place} in it; name a tree with power logs")
    print(json.dumps([_plain(row) for row in rows], indent=2) if options.format == "json" else _text(rows))
    return int(any(row.score is None for row in rows))


def row_of(folder: Path, ruleset: str | None = None) -> Energies:
    """Computes the energies of a folder of runs.

    Raises UserError: a log cannot be read.
    """
    card = scores.score_directory(folder, ruleset)
    runs = [power_logs.of_run(one, folder) for one in card.runs]
    in_band = power_logs.kind(folder) == power_logs.IN_BAND
    by_rules = tuple(one.joules() for one in runs)
    by_stock = tuple(None if in_band else one.stock_joules() for one in runs)
    logs, remarks = [str(one.path) for one in card.runs], [INFORMATIVE] if in_band else []
    if not in_band:
        if bad := checks.bad_names(folder, logs):
            refused = "the stock checker refuses the names of the power logs"
            remarks.append(f"{refused} of {len(bad)} of {len(logs)} runs")
        place, described = place_of(folder.resolve()), None
        if place:
            with suppress(OSError, ValueError):
                described = tree_system.load(place[0] / "systems" / f"{place[1]}.json")
        remarks += [f"{one.message} {one.found}" for one in checks.check(folder, card.runs, described)]
    means = [power_logs.olympic(joules, card.left_out) for joules in (by_rules, by_stock)]
    scaled = [None if None in (card.score, mean) else mean * card.scaling for mean in means]
    names, watts = tuple(one.path.stem for one in card.runs), tuple(map(_watts, runs))
    return Energies(folder, names, by_rules, by_stock, watts, *scaled, card.scaling, tuple(remarks))


def _watts(run: power_logs.RunPower) -> float | None:
    """Returns the mean power of a node in the run."""
    watts = [watts for log in run.nodes if run.span for _, watts in run.during(log)]
    return fmean(watts) if watts else None


def _text(folders: list[Energies]) -> str:
    def kilojoules(joules: float | None) -> str:
        return "-" if joules is None else f"{joules / 1000:,.1f}"

    lines = []
    for row in folders:
        lines.append(f"{row.path.parent.name}/{row.path.name}: energy in kJ")
        table = [("", "rules", "stock", "W a node")]
        for name, rule, stock, watts in zip(row.runs, row.by_rules, row.by_stock, row.watts):
            each = "-" if watts is None else f"{watts:,.0f}"
            table.append((name, kilojoules(rule), kilojoules(stock), each))
        table.append(("score", kilojoules(row.score), kilojoules(row.stock_score), ""))
        lines += [f"  {line}" for line in aligned(table, right=True)]
        if row.scaling != 1:
            lines.append(f"  scores include the factor {row.scaling:.6g} of scaling.json")
        lines += [f"  note: {remark}" for remark in row.remarks]
    return "\n".join(lines)


def _plain(row: Energies) -> dict:
    runs = [
        {"log": name, "joules": rule, "stock_joules": stock, "watts": watts}
        for name, rule, stock, watts in zip(row.runs, row.by_rules, row.by_stock, row.watts)
    ]
    scored = {"score_joules": row.score, "stock_score_joules": row.stock_score, "scaling": row.scaling}
    return {"folder": str(row.path), "runs": runs, **scored, "remarks": list(row.remarks)}
