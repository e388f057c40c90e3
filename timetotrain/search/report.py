"""Writes a search's results: a table of its trials and a picture."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import optuna
from optuna.distributions import CategoricalDistribution
from optuna.trial import FrozenTrial, TrialState

from common import files
from timetotrain import figures
from timetotrain.search.driver import Plan

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FIX = "free space there or change --result-dir"
UNITS = {"quality": "quality", "time": "minutes"}


def publish(study: optuna.Study, plan: Plan, folder: pathlib.Path) -> str:
    """Writes search.csv, search.md and, if a trial has a result, search.png; returns the table's best rows.

    Raises:
      UserError: a file cannot be written; earlier files stay intact.
    """
    # A trial that was rerun counts once, with its last run.
    trials = [t for t in study.trials if t.state.is_finished() and "again" not in t.user_attrs]
    chosen = best(study, plan)
    rows = [_row(t, plan) for t in trials]
    heads = ["trial", *plan.space, "quality", "minutes", "state", "message"]
    files.write_csv(folder / "search.csv", heads, [[row[head] for head in heads] for row in rows], _FIX)
    order = sorted(trials, key=lambda t: _rank(t, plan))
    table = _table(order, plan, {t.number for t in chosen})
    files.write_atomically(folder / "search.md", table.encode(), _FIX)
    complete = [t for t in trials if t.state == TrialState.COMPLETE]
    if complete:
        figures.write(folder / "search.png", _picture(complete, chosen, plan), _FIX)
    return _table(sorted(chosen, key=lambda t: _rank(t, plan)), plan, {t.number for t in chosen})


def best(study: optuna.Study, plan: Plan) -> Sequence[FrozenTrial]:
    """Returns the best trial; with two objectives, the trials that no other trial beats in both."""
    if len(plan.objectives) > 1:
        return study.best_trials
    return [study.best_trial] if any(t.state == TrialState.COMPLETE for t in study.trials) else []


def _rank(trial: FrozenTrial, plan: Plan) -> tuple:
    if trial.state != TrialState.COMPLETE:
        return (1, trial.number)
    sign = 1 if plan.directions[0] == "minimize" else -1
    return (0, sign * trial.values[0], trial.number)


def _row(trial: FrozenTrial, plan: Plan) -> dict[str, Any]:
    notes = trial.user_attrs
    state = {TrialState.COMPLETE: "done", TrialState.PRUNED: "no result"}.get(trial.state, "failed")
    return {
        "trial": trial.number, **{field: trial.params.get(field, "") for field in plan.space},
        "quality": notes.get("quality"), "minutes": notes.get("minutes"), "state": state,
        "message": notes.get("message", ""),
    }  # fmt: skip


def _table(trials: Sequence[FrozenTrial], plan: Plan, chosen: set[int]) -> str:
    heads = ["trial", *plan.space, "quality", "minutes", "state"]
    rows = []
    for trial in trials:
        row = _row(trial, plan)
        cells = [_cell(row[head]) for head in heads]
        cells[0] = f"**{cells[0]}**" if trial.number in chosen else cells[0]
        rows.append(cells)
    return files.markdown_table(heads, rows) + "\n"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def _picture(trials: Sequence[FrozenTrial], chosen: Sequence[FrozenTrial], plan: Plan) -> Figure:
    """Plots the first objective over each field; with two objectives, also one over the other with the Pareto front."""
    os.environ.setdefault("MPLBACKEND", "Agg")
    from matplotlib import pyplot

    pareto = len(plan.objectives) > 1
    count = len(plan.space) + pareto
    figure, grid = pyplot.subplots(1, count, figsize=(4 * count, 3.6), dpi=110, squeeze=False)
    for axes, (field, distribution) in zip(grid[0], plan.space.items()):
        for group, style in ((trials, {"alpha": 0.6}), (chosen, {"color": "tab:red", "zorder": 3})):
            axes.scatter([t.params[field] for t in group], [t.values[0] for t in group], **style)
        axes.set(xlabel=field, ylabel=UNITS[plan.objectives[0]])
        if not isinstance(distribution, CategoricalDistribution) and distribution.log:
            axes.set_xscale("log")
    if pareto:
        axes = grid[0][-1]
        axes.scatter([t.values[1] for t in trials], [t.values[0] for t in trials], alpha=0.6)
        front = sorted((t.values[1], t.values[0]) for t in chosen)
        axes.plot(*zip(*front), "o-", color="tab:red", label="no trial is better in both")
        axes.set(xlabel=UNITS[plan.objectives[1]], ylabel=UNITS[plan.objectives[0]])
        axes.legend()
    figure.tight_layout()
    return figure
