"""Reads the runs on PTB's validation text at a batch of 640 into rows of a table: LEGW, and it with one change each."""

from __future__ import annotations

import json

from tools.docs.measurements import ROOT, Table

TUNE = ROOT / "studies" / "legw-ptb" / "tune.json"
BATCH = 640
# Flags that every run of the study has.
_COMMON = ("legw", "data.eval_split", "num_eval_examples", "quality_target", "division", "precision")


def changes() -> Table:
    """The table of `python -m studies legw-ptb --tune` at the largest batch, the best run first.

    A base rate or warmup under `--config.legw=32` is that of the base batch.
    """
    runs = [r for r in json.loads(TUNE.read_text(encoding="utf-8")) if r["batch"] == BATCH]
    rows = [
        (_changed(run["flags"]), f"{run['quality']:.1f}") for run in sorted(runs, key=lambda r: r["quality"])
    ]
    return ("LEGW with", "perplexity"), rows


def _changed(flags: list[str]) -> str:
    """The settings of a run beside those that all of them have; the preset's warmup says nothing."""
    own = [flag.removeprefix("--config.") for flag in flags]
    own = [text for text in own if text.partition("=")[0] not in _COMMON]
    last = dict(text.split("=") for text in own)  # Of two values of a field, the last counts.
    if last.get("schedule.warmup_epochs") == "0.025":
        del last["schedule.warmup_epochs"]
    return ", ".join(f"`{field}={value}`" for field, value in last.items()) or "nothing changed"
