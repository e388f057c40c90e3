"""Makes the tables about published logs and trees, from compliance_*.json and altered_trees.json."""

from collections import Counter

from tools.docs.measurements import Table, load

_PUBLISHED = "compliance_published.json"
_ALTERED = "altered_trees.json"
# The second file: `python -m lab.bench.compliance_published --trees` on the public part of v6.0.
_FILES = ("compliance_trees.json", "compliance_trees_v6.json")


def _trees() -> list[dict]:
    return [row for name in _FILES for row in load(name)["trees"]]


def rounds() -> Table:
    """Table with a row per round: how the verdicts on its trees compare, and how many folders agree."""
    rows = []
    found = _trees()
    for name in sorted({row["round"] for row in found}):
        of_round = [row for row in found if row["round"] == name]
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
            own, other = (", ".join(sorted(one - another)) for one, another in (kinds, kinds[::-1]))
            rows.append((*cells, *_same([row]), own, other.replace("crash: ", "traceback: ")))
    head = ("round", "submitter", "logs", "ours", "stock", "same convergence", "same score")
    return (*head, "errors of ours alone", "of stock alone"), rows


def altered() -> Table:
    """Table with a row per fault that is made in a tree: who notices it, and by which rules."""
    rows = []
    for row in load(_ALTERED)["rows"]:
        said = [f"`{rule}`" for rule in row["rules"][:3]] or row.get("said", [])[:1]
        noticed = ("yes" if row[side] else "no" for side in ("noticed", "stock"))
        rows.append((row["fault"], *noticed, ", ".join(said)))
    return ("fault", "noticed", "by stock", "by our"), rows


def alarms() -> Table:
    """Table with a row per rule that advises on published folders, or that no stock tool has: its share of them."""
    recorded = load(_ALTERED)
    published = recorded["published"]
    rows = []
    for rule in sorted({*published["alarms"], *recorded["rules"]}):
        by_round = published["alarms"].get(rule, {})
        count = sum(by_round.values())
        most = max(by_round, key=lambda name: by_round[name] / published["rounds"][name], default="")
        share = f"{most}: {by_round[most] / published['rounds'][most]:.0%}" if most else ""
        rows.append((f"`{rule}`", str(count), f"{count / published['folders']:.1%}", share))
    refused = ", ".join(name for name, _ in published["refused_by_new_rules_alone"]) or "none"
    total = (
        f"{published['folders']} folders of {published['submitters']} trees; refused by our own rules alone"
    )
    return ("rule", "folders", "share", "round with the largest share"), [*rows, (total, refused, "", "")]


def log_rounds() -> Table:
    """Table of both verdicts on each round's published logs."""
    head = ("round", "logs", "stock passes", "stock fails", "stock breaks", "ours passes", "different")
    keys = ("logs", "stock pass", "stock fail", "stock crash", "ours pass", "different")
    found = load(_PUBLISHED)["rounds"]
    whole = {key: sum(row.get(key, 0) for row in found.values()) for key in keys}
    named = [*((f"v{name}", row) for name, row in found.items()), ("all", whole)]
    return head, [(name, *(f"{row.get(key, 0):,}" for key in keys)) for name, row in named]


def log_classes() -> Table:
    """Table of the differences by class."""
    found = load(_PUBLISHED)["classes"]
    rows = [
        (f"{one['logs']}", ", ".join(f"v{name}" for name in one["rounds"]), why.replace("|", "/"))
        for why, one in found.items()
    ]
    return ("logs", "rounds", "verdicts"), rows or [("0", "", "none differs")]
