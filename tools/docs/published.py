"""The tables about published logs, from bench/results/compliance_published.json."""

from __future__ import annotations

from tools.docs.measurements import Table, load

_FILE = "compliance_published.json"


def rounds() -> Table:
    """Both verdicts on the published logs of each round."""
    head = ("round", "logs", "stock passes", "stock fails", "stock breaks", "ours passes", "different")
    keys = ("logs", "stock pass", "stock fail", "stock crash", "ours pass", "different")
    found = load(_FILE)["rounds"]
    return head, [(f"v{name}", *(f"{row.get(key, 0):,}" for key in keys)) for name, row in found.items()]


def classes() -> Table:
    """The differences by class."""
    found = load(_FILE)["classes"]
    rows = [
        (f"{one['logs']}", ", ".join(f"v{name}" for name in one["rounds"]), why.replace("|", "/"))
        for why, one in found.items()
    ]
    return ("logs", "rounds", "verdicts"), rows or [("0", "", "none differs")]
