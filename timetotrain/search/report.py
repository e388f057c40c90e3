"""Writes a search's results: a table of its trials and a picture."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from common import files
from timetotrain import figures
from timetotrain.search.driver import Plan, counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FIX = "free space there or change --result_dir"
UNITS = {"quality": "quality", "time": "minutes"}


def publish(study: optuna.Study, plan: Plan, folder: pathlib.Path) -> str:
    """Writes search.csv, search.md and, if a trial has a result, search.png; returns the table's best row.

    Raises UserError if a file cannot be written; earlier files stay intact.
    """
    trials = [t for t in counted(study) if t.state.is_finished()]
    complete = [t for t in trials if t.state == TrialState.COMPLETE]
    best = {study.best_trial.number} if complete else set()
    heads = ["trial", *plan.space, "quality", "minutes", "state", "message"]
    files.write_csv(folder / "search.csv", heads, [_row(t, plan) for t in trials], _FIX)
    sign = 1 if plan.direction == "minimize" else -1
    order = [*sorted(complete, key=lambda t: sign * t.values[0]), *(t for t in trials if t not in complete)]
    rows = {t.number: [_cell(value) for value in _row(t, plan)[:-1]] for t in order}
    for number in best & rows.keys():
        rows[number][0] = f"**{number}**"
    table = files.markdown_table(heads[:-1], rows.values()) + "\n"
    files.write_atomically(folder / "search.md", table.encode(), _FIX)
    if complete:
        figures.write(folder / "search.png", _picture(complete, best, plan), _FIX)
    return files.markdown_table(heads[:-1], [row for number, row in rows.items() if number in best]) + "\n"


def _row(trial: FrozenTrial, plan: Plan) -> list[Any]:
    outcome = trial.user_attrs.get("outcome", {})
    state = {TrialState.COMPLETE: "done", TrialState.PRUNED: "no result"}.get(trial.state, "failed")
    return [
        trial.number, *(trial.params.get(field, "") for field in plan.space), outcome.get("quality"),
        outcome.get("minutes"), state, outcome.get("message", ""),
    ]  # fmt: skip


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def _picture(trials: Sequence[FrozenTrial], best: set[int], plan: Plan) -> Figure:
    """Plots the objective over each field; the best trial is red."""
    os.environ.setdefault("MPLBACKEND", "Agg")
    from matplotlib import pyplot

    columns = {field: [t.params[field] for t in trials] for field in plan.space}
    figure, grid = pyplot.subplots(1, len(columns), figsize=(4 * len(columns), 3.6), dpi=110, squeeze=False)
    for axes, (label, column) in zip(grid[0], columns.items()):
        colors = ["tab:red" if t.number in best else "tab:blue" for t in trials]
        axes.scatter(column, [t.values[0] for t in trials], c=colors, alpha=0.6)
        axes.set(xlabel=label, ylabel=UNITS[plan.objective])
        if getattr(plan.space.get(label), "log", False):
            axes.set_xscale("log")
    figure.tight_layout()
    return figure
