"""Implements `timetotrain report PATH -o report.html`: writes results as one self-contained page."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from common.errors import counted
from compliance.api import Outcome, check
from compliance.findings import ERROR, Finding
from compliance.formats import verdict_line
from compliance.report import charts, index
from compliance.report.output import render, write
from compliance.report.published import PublishedScore, scores_beside
from compliance.submission.rounds import may_fail
from compliance.submission.runs import Run
from compliance.submission.scaling import factor
from compliance.submission.scores import ScoreCard, result_folders, score_directory
from compliance.submission.summary import differs_from_published
from compliance.submission.verdict import ResultFolder


def run(args: argparse.Namespace) -> int:
    """Writes the page and prints its path. Returns 0 whatever the findings: `check` is the command that fails."""
    outcome = check([args.path], args.ruleset)
    cards = [card_of(folder, outcome, args.ruleset) for folder in result_folders(args.path)]
    write(args.output, page(cards, outcome))
    summary = f"{counted(sum(len(card.runs) for card in cards), 'run')} in {counted(len(cards), 'folder')}"
    print(f"Wrote {args.output}: {summary}. {verdict_line(outcome)}")
    return 0


def card_of(path: Path, outcome: Outcome, ruleset: str | None = None) -> ScoreCard:
    """Scores a folder of runs (or one log) from what `check` found, with the factor that `scores` takes."""
    folder = _folder_of(path)
    logs = [log for log in outcome.logs if Path(log.path).parent == folder]
    result = index.folders_by_path(outcome).get(folder.resolve())
    ruleset = ruleset or next((log.ruleset for log in logs if log.ruleset), None)
    scaling = factor(folder, result.convergence if result else None).value
    return score_directory(path, ruleset, logs or None, scaling)


def _folder_of(path: Path) -> Path:
    return path.parent if path.is_file() else path


def page(cards: list[ScoreCard], outcome: Outcome | None = None) -> str:
    """Returns the HTML of the report. It needs no network: styles, charts and the one script (sort, filter) are inline.

    `outcome`: the result of `check` for the whole path; None if it did not run.
    """
    of_folders, rest, results = [None] * len(cards), [], {}
    if outcome is not None:
        of_folders, rest = index.by_folder(outcome, [_folder_of(card.path) for card in cards])
        results = index.folders_by_path(outcome)
        if len(cards) == 1:
            of_folders, rest = [[*of_folders[0], *rest]], []
    folders = [
        _folder(card, number, findings, results.get(_folder_of(card.path).resolve()))
        for number, (card, findings) in enumerate(zip(cards, of_folders), 1)
    ]
    return render(
        "report.html", folders=folders, with_convergence=any(folder["row"]["convergence"] for folder in folders),
        verdict=outcome.verdict if outcome else None, verdict_line=verdict_line(outcome) if outcome else "",
        rest=_findings(rest),
    )  # fmt: skip


def _folder(
    card: ScoreCard, number: int, findings: Sequence[Finding] | None, result: ResultFolder | None
) -> dict:
    longest = max((run.minutes or 0 for run in card.runs), default=0)
    place = _folder_of(card.path).resolve()
    count, rows = scores_beside(card)
    rows = [] if card.smoke else rows
    return {
        "card": card, "row": index.row(card, findings, result), "anchor": f"folder-{number}",
        "runs": [_run(card, index, longest) for index in range(len(card.runs))],
        "overlays": [_overlay(card, metric) for metric in charts.metrics(card.runs)],
        "findings": None if findings is None else _findings(findings), "accelerators": count,
        "unit": card.runs[0].unit, **_published(card, rows, count),
        "differs": differs_from_published(place.parents[2].name, card) if len(place.parents) > 2 else [],
        "scaled_by": factor(_folder_of(card.path), result.convergence if result else None).source,
    }  # fmt: skip


def _findings(findings: Sequence[Finding]) -> list[dict]:
    """Merges equal findings of several logs; errors first."""
    names = ("severity", "rule", "message", "expected", "fix")
    groups: dict[tuple[str, ...], list[str]] = {}
    for one in findings:
        line = f":{one.line}" if one.line else ""
        kind = tuple(getattr(one, name) for name in names)
        groups.setdefault(kind, []).append(f"{Path(one.path).name}{line}")
    rows = [dict(zip(names, kind), places=places) for kind, places in groups.items()]
    return sorted(rows, key=lambda row: row["severity"] != ERROR)


def fate(card: ScoreCard, index: int) -> str:
    """Returns a run's role in the score: counted, fastest, slowest, failed; "" without a score."""
    if not card.counts[index]:
        return "failed"
    if card.score is None:
        return ""
    if index not in card.left_out:
        return "counted"
    return "fastest" if card.left_out.index(index) < may_fail(card.benchmark) else "slowest"


def _run(card: ScoreCard, index: int, longest: float) -> dict:
    run = card.runs[index]
    timeline = charts.timeline(run)
    return {
        "run": run, "name": run.path.stem, "fate": fate(card, index),
        "share": round(100 * run.minutes / longest, 2) if run.minutes and longest else 0,
        "quality": [f"{name} {value:.5g}".strip() for name, value in run.quality.items()] or ["–"],
        "timeline": timeline,
        "plots": [] if timeline is None else [
            _plot(metric, y := charts.quality_axis([run], metric), run,
                  [charts.curve(run, metric, timeline.x, y, charts.UNITS[timeline.unit])])
            for metric in charts.metrics([run])
        ],
    }  # fmt: skip


def _plot(metric: str, y: charts.Axis, run: Run, curves: list[charts.Curve]) -> dict:
    target = run.target.get(metric)
    height = None if target is None else round(100 - y(target), 3)
    name = metric or _METRICS.get(run.benchmark, "Quality")
    return {"metric": name, "y": y, "target": target, "target_y": height, "curves": curves}


# The metric that eval_accuracy logs, for benchmarks whose rules name one.
_METRICS = {
    "resnet": "Top-1 accuracy", "ssd": "mAP", "retinanet": "mAP", "transformer": "BLEU", "gnmt": "BLEU", "dlrm": "AUC",
    "dlrm_dcnv2": "AUC", "bert": "Masked-LM accuracy", "rnnt": "Word error rate", "unet3d": "Mean Dice",
    "gpt3": "Log perplexity", "llama2_70b_lora": "Evaluation loss", "llama31_405b": "Log perplexity",
    "llama31_8b": "Log perplexity", "rgat": "Accuracy", "gnn": "Accuracy", "flux1": "Validation loss",
    "gpt_oss_20b": "Log perplexity", "deepseekv3_671b": "Log perplexity", "dlrmv4": "AUC", "maskrcnn": "AP",
    "qwen35_397b_grpo": "Validation accuracy",
}  # fmt: skip


def _overlay(card: ScoreCard, metric: str) -> dict:
    """Plots all runs together over the time since run_start; draws the dropped runs last, on top."""
    timed = [(index, run) for index, run in enumerate(card.runs) if run.minutes is not None]
    ends = [(run.run_stop - run.run_start) for _, run in timed]
    unit, size = charts.time_unit(max(ends, default=0.0))
    x = charts.axis([0.0, *(end / size for end in ends)], count=7)
    y = charts.quality_axis([run for _, run in timed], metric)
    order = sorted(timed, key=lambda pair: fate(card, pair[0]) not in ("counted", ""))
    plot = _plot(metric, y, card.runs[0], [charts.curve(run, metric, x, y, size) for _, run in order])
    lines = [
        {"curve": curve, "name": run.path.stem, "fate": fate(card, i) or "counted", "minutes": run.minutes}
        for curve, (i, run) in zip(plot["curves"], order)
    ]
    return {**plot, "x": x, "unit": unit, "lines": lines}


# ------------------------------------------------------------------------------------------- published scores


_AROUND = 12  # how many published scores to show on each side of the card's own


def _around(table: list[dict]) -> list[dict]:
    """Returns the fastest score and those near the card's own (if it has none: the fastest), each with its rank."""
    placed = [{**row, "place": place} for place, row in enumerate(table, 1)]
    own_place = next((place for place, row in enumerate(placed) if row["own"]), 0)
    first = max(own_place - _AROUND, 0)
    near = placed[first : max(own_place, _AROUND) + _AROUND + 1]
    return near if first == 0 else [placed[0], *near]


def _published(card: ScoreCard, rows: list[PublishedScore], count: int | None) -> dict[str, object]:
    """Returns the published scores, fastest first, with the card's own among them if it is comparable, and its rank."""
    comparable = bool(rows) and card.score is not None and not card.smoke
    table = [
        {"own": False, "round": row.round, "org": row.org, "system": row.system, "minutes": row.minutes}
        for row in rows
    ]
    if comparable:
        own_row = {"own": True, "round": f"v{card.ruleset.removesuffix('.0')}", "org": card.org}
        table.append({**own_row, "system": card.system, "minutes": card.score})
        table.sort(key=lambda row: (row["minutes"], not row["own"]))
    longest = max((row["minutes"] for row in table), default=1.0)
    names = sorted({row.round for row in rows})
    ranked = comparable and rows[0].accelerators == count
    return {
        "published": _around([{**row, "share": round(100 * row["minutes"] / longest, 2)} for row in table]),
        "published_count": len(table), "published_at": rows[0].accelerators if rows else None,
        "published_rounds": " to ".join(dict.fromkeys((names[0], names[-1]))) if names else "",
        "place": 1 + sum(row.minutes < card.score for row in rows) if ranked else None,
    }  # fmt: skip
