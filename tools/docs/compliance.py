"""Makes the tables about published logs and trees, from compliance_*.json."""

from collections import Counter

from tools.docs.measurements import Table, load

_PUBLISHED = "compliance_published.json"
# The second file: `python -m lab.bench.compliance_published --trees` on the public part of v6.0.
_FILES = ("compliance_trees.json", "compliance_trees_v6.json")


def _trees() -> list[dict]:
    return [row for name in _FILES for row in load(name)["trees"]]


def rounds() -> Table:
    """Table with a row per round: how the verdicts on its trees compare, and how many folders agree."""
    rows = []
    all_trees = _trees()
    for name in sorted({row["round"] for row in all_trees}):
        of_round = [row for row in all_trees if row["round"] == name]
        both = Counter((row["ours"] == "go", row["stock"] == "go") for row in of_round)
        counts = (len(of_round), sum(row["logs"] for row in of_round))
        verdicts = (both[True, True], both[False, False], both[True, False], both[False, True])
        rows.append((name, *(f"{count:,}" for count in (*counts, *verdicts)), *_same(of_round)))
    head = ("round", "trees", "logs", "both go", "both no-go", "only ours go", "only stock go")
    return (*head, "same convergence", "same score"), rows


def _same(rows: list[dict]) -> tuple[str, ...]:
    """Counts how many folders agree, among those with a convergence test and among those with a score."""
    return tuple(
        f"{sum(row.get(f'{kind}_same', 0) for row in rows):,} of {sum(row.get(kind, 0) for row in rows):,}"
        for kind in ("convergence", "scores")
    )


def trees() -> Table:
    """Table with a row per submitter whose tree or folder is judged differently, with the kinds of errors."""
    rows = []
    for row in _trees():
        kinds = (set(row["our_kinds"]) - {"other"}, set(row["stock_kinds"]))
        if row["differences"] or row["ours"] != row["stock"] or kinds[0] != kinds[1]:
            cells = (row["round"], row["submitter"], str(row["logs"]), row["ours"], row["stock"])
            ours, other = (", ".join(sorted(one - another)) for one, another in (kinds, kinds[::-1]))
            rows.append((*cells, *_same([row]), ours, other.replace("crash: ", "traceback: ")))
    head = ("round", "submitter", "logs", "ours", "stock", "same convergence", "same score")
    return (*head, "errors of ours alone", "of stock alone"), rows


def log_rounds() -> Table:
    """Table of both verdicts on each round's published logs."""
    head = ("round", "logs", "stock passes", "stock fails", "stock breaks", "ours passes", "different")
    keys = ("logs", "stock pass", "stock fail", "stock crash", "ours pass", "different")
    by_round = load(_PUBLISHED)["rounds"]
    whole = {key: sum(row.get(key, 0) for row in by_round.values()) for key in keys}
    rows = [*((f"v{name}", row) for name, row in by_round.items()), ("all", whole)]
    return head, [(name, *(f"{row.get(key, 0):,}" for key in keys)) for name, row in rows]


def log_classes() -> Table:
    """Table of the differences by class."""
    classes = load(_PUBLISHED)["classes"]
    rows = [
        (f"{one['logs']}", ", ".join(f"v{name}" for name in one["rounds"]), why.replace("|", "/"))
        for why, one in classes.items()
    ]
    return ("logs", "rounds", "verdicts"), rows or [("0", "", "none differs")]
