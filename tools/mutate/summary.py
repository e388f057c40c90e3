"""Sums up the results of a mutation run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

RESULTS = Path(__file__).parent / "results.json"


def summary(results: Mapping[str, dict]) -> str:
    """A table of outcomes by folder."""
    folders: dict[str, dict[str, int]] = {}
    for entry in results.values():
        folder = "/".join(entry["file"].split("/")[: 2 if entry["file"].startswith("common/") else 1])
        outcome = "equivalent" if entry["equivalent"] else entry["outcome"]
        row = folders.setdefault(folder, dict.fromkeys(("caught", "timeout", "survived", "equivalent"), 0))
        row[outcome] = row.get(outcome, 0) + 1
    lines = ["| folder | caught | survived | equivalent |", "|---|---|---|---|"]
    for folder, row in sorted(folders.items()):
        caught = row["caught"] + row["timeout"]
        lines.append(f"| `{folder}` | {caught} | {row['survived']} | {row['equivalent']} |")
    return "\n".join(lines)
