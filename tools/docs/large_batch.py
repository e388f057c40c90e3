"""Reads the runs on PTB's validation text into rows of a table: base rates at 20, and changes one at a time at 640."""

from __future__ import annotations

import json

from tools.docs.measurements import ROOT, Table

TUNE = ROOT / "studies" / "legw-ptb" / "tune.json"
# Flags that every run of the study has, and what the preset says of the others.
_COMMON = ("legw", "data.eval_split", "num_eval_examples", "quality_target", "division", "precision")
_PRESET = {"schedule.warmup_epochs": "0.025"}


def changes() -> Table:
    """The table of `python -m studies legw-ptb --tune`: at each batch the best run first.

    A rate or warmup is that of the base batch, which `--config.legw=32` scales.
    """
    runs = json.loads(TUNE.read_text(encoding="utf-8"))
    rows = [
        (str(run["batch"]), _changed(run), f"{run['quality']:.1f}")
        for run in sorted(runs, key=lambda run: (run["batch"], run["quality"]))
    ]
    return ("batch", "changed", "perplexity"), rows


def _changed(run: dict) -> str:
    """The settings of a run that are neither the preset's nor those of all runs."""
    if run["method"] == "base":  # The warmup of these was the preset's own at the time.
        return f"`optimizer.base_learning_rate={run['rate']:g}`"
    own = [flag.removeprefix("--config.").split("=") for flag in run["flags"]]
    last = {field: value for field, value in own if field not in _COMMON}  # Of two values, the last counts.
    changed = [f"`{field}={value}`" for field, value in last.items() if _PRESET.get(field) != value]
    return ", ".join(changed) or "nothing"
