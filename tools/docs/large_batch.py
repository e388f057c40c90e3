"""Reads PTB's runs into rows of tables: LEGW at other base rates, and what was tried on the validation text."""

from __future__ import annotations

import csv
import json
import statistics

from tools.docs.measurements import ROOT, Table

STUDY = ROOT / "lab/studies" / "legw-ptb"
TUNE = STUDY / "tune.json"
# (base rate, base warmup in epochs): the results of LEGW with them, on the test text. The second are the presets'.
BASES = {
    ("0.025", "0.025"): STUDY / "at-0.025" / "results.csv",
    ("0.03", "0.025"): STUDY / "results.csv",
    ("0.1", "0.1"): STUDY / "at-0.1" / "results.csv",
}
# Flags that every run of the study has, and what the preset says of the others.
_COMMON = ("legw", "data.eval_split", "num_eval_examples", "quality_target", "division", "precision")
_PRESET = {"schedule.warmup_epochs": "0.025"}


def changes() -> Table:
    """The table of `python -m lab.studies legw-ptb --tune`: at each batch the best run first.

    A rate or warmup is that of the base batch, which `--config.legw=32` scales.
    """
    runs = json.loads(TUNE.read_text(encoding="utf-8"))
    rows = [
        (str(run["batch"]), _changed(run), f"{run['quality']:.1f}")
        for run in sorted(runs, key=lambda run: (run["batch"], run["quality"]))
    ]
    return ("batch", "changed", "perplexity"), rows


def base_rates() -> Table:
    """The table of LEGW by base rate and batch: the mean over seeds, and their standard deviation."""
    found: dict[tuple[str, str], dict[int, list[float]]] = {base: {} for base in BASES}
    for base, path in BASES.items():
        with path.open(encoding="utf-8", newline="") as file:
            for run in csv.DictReader(file):
                if run["method"] == "legw" and run["quality"]:  # Empty for a run that diverged.
                    found[base].setdefault(int(run["batch"]), []).append(float(run["quality"]))
    batches = sorted({batch for by_batch in found.values() for batch in by_batch})
    rows = [
        (*base, *(_spread(by_batch.get(batch, [])) for batch in batches)) for base, by_batch in found.items()
    ]
    return ("base rate", "base warmup", *map(str, batches)), rows


def _spread(values: list[float]) -> str:
    mean = f"{statistics.mean(values):.1f}" if values else ""
    return mean + (f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else "")


def _changed(run: dict) -> str:
    """The settings of a run that are neither the preset's nor those of all runs."""
    if run["method"] == "base":  # The warmup of these was the preset's own at the time.
        return f"`optimizer.base_learning_rate={run['rate']:g}`"
    own = [flag.removeprefix("--config.").split("=") for flag in run["flags"]]
    last = {field: value for field, value in own if field not in _COMMON}  # Of two values, the last counts.
    changed = [f"`{field}={value}`" for field, value in last.items() if _PRESET.get(field) != value]
    return ", ".join(changed) or "nothing"
