"""Summarizes the results of a mutation run."""

from collections.abc import Mapping
from pathlib import Path

RESULTS = Path(__file__).parent / "results.json"  # For the hand-written faults.


def summary(results: Mapping[str, dict]) -> str:
    """Table of outcomes by folder; a fault whose tests time out counts as survived."""
    folders: dict[str, dict[str, int]] = {}
    for entry in results.values():
        folder = "/".join(entry["file"].split("/")[: 2 if entry["file"].startswith("common/") else 1])
        row = folders.setdefault(folder, dict.fromkeys(("caught", "survived", "equivalent"), 0))
        row[entry["outcome"] if entry["outcome"] in row else "survived"] += 1
    total = {
        name: sum(row[name] for row in folders.values()) for name in ("caught", "survived", "equivalent")
    }
    rows = [(f"`{folder}`", row) for folder, row in sorted(folders.items())] + [("all", total)]
    lines = ["| folder | caught | survived | equivalent |", "|---|---|---|---|"]
    lines += [f"| {name} | {row['caught']} | {row['survived']} | {row['equivalent']} |" for name, row in rows]
    return "\n".join(lines)
