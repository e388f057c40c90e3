"""Makes the tables about published logs, from lab/bench/results/compliance_published.json."""

from __future__ import annotations

from tools.docs.measurements import Table, load

_FILE = "compliance_published.json"


def rounds() -> Table:
    """Table of both verdicts on each round's published logs."""
    head = ("round", "logs", "stock passes", "stock fails", "stock breaks", "ours passes", "different")
    keys = ("logs", "stock pass", "stock fail", "stock crash", "ours pass", "different")
    found = load(_FILE)["rounds"]
    whole = {key: sum(row.get(key, 0) for row in found.values()) for key in keys}
    named = [*((f"v{name}", row) for name, row in found.items()), ("all", whole)]
    return head, [(name, *(f"{row.get(key, 0):,}" for key in keys)) for name, row in named]


def classes() -> Table:
    """Table of the differences by class."""
    found = load(_FILE)["classes"]
    rows = [
        (f"{one['logs']}", ", ".join(f"v{name}" for name in one["rounds"]), why.replace("|", "/"))
        for why, one in found.items()
    ]
    return ("logs", "rounds", "verdicts"), rows or [("0", "", "none differs")]
