"""Implements `timetotrain compare A B`: compares two runs or two folders of runs."""

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

from common.errors import UserError
from compliance.report import charts
from compliance.report.output import aligned, minutes, value, write
from compliance.report.published import beside
from compliance.submission.scores import ScoreCard, score_directory


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", metavar="A", type=Path, help="a log, or a folder of result logs")
    parser.add_argument("b", metavar="B", type=Path, help="the same kind of thing")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    here = "write here, not to standard output"
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help=here)
    parser.add_argument("--all", action="store_true", help="show equal values too (text; json has all)")


def run(args: argparse.Namespace) -> int:
    """Prints or writes the comparison; always returns 0, even if the two differ.

    Raises UserError: a side does not exist, or holds no result log.
    """
    cards = [score_directory(side) for side in (args.a, args.b)]
    for side, card in zip((args.a, args.b), cards):
        if not any(run.header for run in card.runs):
            raise UserError(f"{side}: no record of a log; `timetotrain diff` compares descriptions of trees")
    rows = compare(*cards)
    if args.format == "json":
        told = [asdict(row) | {"differs": row.differs} for row in rows]
        content = {"kind": "runs", "a": str(args.a), "b": str(args.b), "rows": told}
        text = json.dumps(content, indent=2) + "\n"
    else:
        text = _text(args.a, args.b, rows, args.all)
    if args.output is None:
        print(text, end="")
    else:
        write(args.output, text)
        print(f"Wrote {args.output}.")
    return 0


@dataclass(frozen=True)
class Compared:
    """One compared value of both sides, as text; `note` is the ratio or difference of numbers."""

    name: str
    a: str
    b: str
    note: str = ""

    @property
    def differs(self) -> bool:
        return self.a != self.b


def compare(a: ScoreCard, b: ScoreCard) -> list[Compared]:
    """Compares two folders of runs: header, times, quality, and every setting of either side."""
    heads = [
        {
            "benchmark": card.benchmark, "organisation": card.org, "system": card.system, "rules": card.ruleset,
            "division": card.runs[0].header.get("submission_division", ""), "smoke run": "yes" if card.smoke else "no",
        }
        for card in (a, b)
    ]  # fmt: skip
    rows = [Compared(name, *(value(head[name]) for head in heads)) for name in heads[0]]
    times = [[m for m in card.minutes if m is not None] for card in (a, b)]
    rows += [
        _numbers("accelerators", beside(a)[0], beside(b)[0]),
        _numbers("runs", len(a.runs), len(b.runs)),
        _numbers("successful runs", a.converged, b.converged),
        _times("score, minutes", a.score, b.score),
        _times("fastest, minutes", *(min(minutes, default=None) for minutes in times)),
        _times("slowest, minutes", *(max(minutes, default=None) for minutes in times)),
        _numbers("last epoch, mean", a.epochs, b.epochs),
    ]
    lanes = [_lanes(card) for card in (a, b)]
    rows += [
        _times(f"{name}, minutes a run", lanes[0].get(name), lanes[1].get(name))
        for name in ("init", "train", "eval", "gap")
    ]
    for metric in charts.metrics([*a.runs, *b.runs]):
        qualities = ([run.quality[metric] for run in card.runs if metric in run.quality] for card in (a, b))
        rows.append(
            _numbers(f"quality {metric}".strip(), *(fmean(one) if one else None for one in qualities))
        )
    sizes, first = ("global_batch_size", "train_samples", "eval_samples"), (a.runs[0], b.runs[0])
    settings = [{key: run.header[key] for key in sizes if key in run.header} | run.settings for run in first]
    for key in dict.fromkeys([*settings[0], *settings[1]]):
        first, second = (side.get(key) for side in settings)
        numbers = all(isinstance(x, (int, float)) and not isinstance(x, bool) for x in (first, second))
        rows.append(Compared(key, _logged(first), _logged(second), _ratio(first, second) if numbers else ""))
    return rows


def _logged(logged: object) -> str:
    return "" if logged is None else value(logged)


def _lanes(card: ScoreCard) -> dict[str, float]:
    """Returns the mean minutes per run in each lane of the timeline."""
    timelines = [line for run in card.runs if (line := charts.timeline(run))]
    if not timelines:
        return {}
    return {
        lane.name: fmean(line.lanes[place].total_ms for line in timelines) / 60_000
        for place, lane in enumerate(timelines[0].lanes)
    }


def _numbers(name: str, a: float | None, b: float | None) -> Compared:
    return Compared(name, _logged(a), _logged(b), _ratio(a, b))


def _times(name: str, a: float | None, b: float | None) -> Compared:
    if a is None and b is None:
        return Compared(name, "", "")
    return Compared(name, *("" if time is None else minutes(time) for time in (a, b)), _ratio(a, b))


def _ratio(a: float | None, b: float | None) -> str:
    """Returns the ratio b / a, or "" if it has no meaning."""
    if not a or not b or a == b or a < 0 or b < 0:
        return ""
    try:
        return f"x {b / a:.4g}"
    except OverflowError:  # An integer has hundreds of digits.
        return ""


def _text(a: Path, b: Path, rows: list[Compared], everything: bool) -> str:
    shown = [row for row in rows if everything or row.differs]
    equal = sum(not row.differs for row in rows)
    table = [("", f"A {a}", f"B {b}", "B / A")]
    table += [(row.name, row.a or "-", row.b or "-", row.note.removeprefix("x ")) for row in shown]
    lines = aligned([[cell[:60] for cell in row] for row in table]) if shown else []
    if equal and not everything:
        lines.append(f"{equal} of {len(rows)} are equal or not given; --all shows them.")
    return "\n".join(lines) + "\n"
