"""Implements `timetotrain compare A B`: compares two runs, two folders of runs or two systems."""

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

import systems
from common.errors import UserError
from compliance.report import charts
from compliance.report.output import minutes, render, value, write
from compliance.report.published import beside
from compliance.submission.scores import ScoreCard, score_directory
from systems.schema import NAMES

FORMATS = ("text", "html", "json")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    sides = "a log, a folder of result logs, a system description (JSON), or the name of a system"
    parser.add_argument("a", metavar="A", help=sides)
    parser.add_argument("b", metavar="B", help="the same kind of thing")
    parser.add_argument("--format", choices=FORMATS, default="text")
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=Path, help="write here, not to standard output"
    )
    parser.add_argument("--all", action="store_true", help="also what is equal (text; the others have all)")


def run(args: argparse.Namespace) -> int:
    """Prints or writes the comparison; always returns 0, even if the two differ."""
    comparison = compare(args.a, args.b)
    if args.format == "html":
        text = render("compare.html", comparison=comparison)
    elif args.format == "json":
        rows = [asdict(row) | {"differs": row.differs} for row in comparison.rows]
        content = {"kind": comparison.kind, "a": comparison.a, "b": comparison.b, "rows": rows}
        text = json.dumps(content, indent=2) + "\n"
    else:
        text = _text(comparison, args.all)
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


@dataclass(frozen=True)
class Comparison:
    """`kind` is "runs" or "systems"; `a` and `b` name the two sides."""

    kind: str
    a: str
    b: str
    rows: list[Compared]


def compare(a: str, b: str) -> Comparison:
    """Compares two results or two systems. Raises UserError if their kinds differ or one does not exist."""
    sides = [_read(side) for side in (a, b)]
    if isinstance(sides[0], ScoreCard) != isinstance(sides[1], ScoreCard):
        raise UserError(f"{a} and {b}: one is a system, the other is runs; compare two of one kind")
    if isinstance(sides[0], ScoreCard):
        return Comparison("runs", a, b, _run_rows(*sides))
    rows = [Compared(name, *(_field(side.get(name, "")) for side in sides)) for name in NAMES]
    sizes = [systems.size(side)[1] for side in sides]
    total = Compared(
        "accelerators in all", *("" if size is None else str(size) for size in sizes), _ratio(*sizes)
    )
    return Comparison("systems", a, b, [total, *rows])


def _field(content: object) -> str:
    return content if isinstance(content, str) else json.dumps(content)


def _read(side: str) -> ScoreCard | dict:
    path = Path(side)
    if path.suffix == ".json" and path.exists():
        described = systems.read(path)
        if not isinstance(described, dict):
            raise UserError(f"{side}: not a JSON object; name a system description with the 33 fields")
        return described
    if path.exists():
        return score_directory(path)
    if side in systems.names():
        return systems.load(side)
    raise UserError(f"{side}: no such log, folder or system; `timetotrain systems list` shows the systems")


# ------------------------------------------------------------------------------------------------ runs


def _run_rows(a: ScoreCard, b: ScoreCard) -> list[Compared]:
    rows = [
        Compared(name, value(get(a)), value(get(b)))
        for name, get in (
            ("benchmark", lambda card: card.benchmark),
            ("organisation", lambda card: card.org),
            ("system", lambda card: card.system),
            ("rules", lambda card: card.ruleset),
            ("division", lambda card: card.runs[0].header.get("submission_division", "")),
            ("smoke run", lambda card: "yes" if card.smoke else "no"),
        )
    ]
    times = [[m for m in card.minutes if m is not None] for card in (a, b)]
    rows += [
        _numbers("accelerators", beside(a)[0], beside(b)[0]),
        _numbers("runs", len(a.runs), len(b.runs)),
        _numbers("successful runs", a.converged, b.converged),
        _times("score, minutes", a.score, b.score),
        _times("fastest, minutes", *(min(found, default=None) for found in times)),
        _times("slowest, minutes", *(max(found, default=None) for found in times)),
        _numbers("last epoch, mean", a.epochs, b.epochs),
    ]
    lanes = [_lanes(card) for card in (a, b)]
    rows += [
        _times(f"{name}, minutes a run", lanes[0].get(name), lanes[1].get(name))
        for name in ("init", "train", "eval", "gap")
    ]
    for metric in charts.metrics([*a.runs, *b.runs]):
        rows.append(_numbers(f"quality {metric}".strip(), *(_quality(card, metric) for card in (a, b))))
    settings = [{**_batch(card), **card.runs[0].settings} for card in (a, b)]
    for key in dict.fromkeys([*settings[0], *settings[1]]):
        first, second = (side.get(key) for side in settings)
        numbers = all(isinstance(x, (int, float)) and not isinstance(x, bool) for x in (first, second))
        rows.append(
            _numbers(key, first, second) if numbers else Compared(key, _logged(first), _logged(second))
        )
    return rows


def _batch(card: ScoreCard) -> dict[str, object]:
    header = card.runs[0].header
    return {
        key: header[key] for key in ("global_batch_size", "train_samples", "eval_samples") if key in header
    }


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


def _quality(card: ScoreCard, metric: str) -> float | None:
    found = [run.quality[metric] for run in card.runs if metric in run.quality]
    return fmean(found) if found else None


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


# ------------------------------------------------------------------------------------------------ text


def _text(comparison: Comparison, everything: bool) -> str:
    rows = [row for row in comparison.rows if everything or row.differs]
    equal = sum(not row.differs for row in comparison.rows)
    lines = []
    if rows:
        table = [("", f"A {comparison.a}", f"B {comparison.b}", "B / A")]
        table += [(row.name, row.a or "-", row.b or "-", row.note.removeprefix("x ")) for row in rows]
        widths = [min(max(len(line[i]) for line in table), 60) for i in range(4)]
        for line in table:
            lines.append("  ".join(cell[:60].ljust(width) for cell, width in zip(line, widths)).rstrip())
    if not everything:
        lines.append(
            f"{equal} of {len(comparison.rows)} are equal or not given; --all shows them." if equal else ""
        )
    return "\n".join(filter(None, lines)) + "\n"
