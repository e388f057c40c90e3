"""Turns measurements of training on your own data into table rows: four commands, and fine-tuning."""

from __future__ import annotations

import csv

from tools.docs.measurements import ROOT, Table, load

FINE_TUNING = ROOT / "lab/studies" / "fine-tuning" / "results.csv"
_VERBS = ("data", "run", "export", "predict")


def four_commands() -> Table:
    """Table of lab/bench/files_to_prediction.py: seconds of each command, best quality of a run of a few minutes."""
    rows = []
    for row in load("own_data.json")["rows"]:
        seconds = (f"{row['seconds'][verb]:.0f} s" for verb in _VERBS)
        examples = f"{row['train']:,} and {row['eval']:,}"
        load_before = f"{row['load'][0]:.0f}"
        rows.append(
            (
                row["data"],
                row["benchmark"],
                examples,
                f"{row['epochs']:g}",
                *seconds,
                row["shown"],
                load_before,
            )
        )
    return ("set", "benchmark", "examples", "epochs", *_VERBS, "best", "load"), rows


def fine_tuning() -> Table:
    """Table of `python -m lab.studies fine-tuning`: top-1 accuracies, and the margin over training from scratch."""
    with open(FINE_TUNING, newline="", encoding="utf-8") as file:
        found = list(csv.DictReader(file))
    rows = []
    for row in found:
        margin = f"{100 * float(row['over_scratch']):+.1f} points" if row["over_scratch"] else ""
        top1 = f"{100 * float(row['top1']):.1f} %"
        rows.append((row["run"], row["classes"], row["photographs"], row["epochs"], top1, margin))
    return ("run", "classes", "photographs", "epochs", "top-1", "over from scratch"), rows
