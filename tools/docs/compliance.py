"""Makes the tables about published logs and trees, from compliance_*.json and altered_trees.json."""

from collections import Counter
from collections.abc import Iterator

from tools.docs.measurements import Table, load

_PUBLISHED = "compliance_published.json"
_ALTERED = "altered_trees.json"
# The second file: `python -m lab.bench.compliance_published --trees` on the public part of v6.0.
_FILES = ("compliance_trees.json", "compliance_trees_v6.json")
# (difference, who is right). A tree or folder belongs to the first class that fits.
CLASSES: dict[str, tuple[str, str]] = {
    "dlrm": (
        "The stock convergence test knows no number of runs for dlrm and ends with a traceback (KeyError), and the "
        "package checker with it; ours takes the five of the table of rounds.",
        "ours",
    ),
    "no verdict": (
        "The stock package checker ends with a traceback (a description that is missing, is no JSON or has no "
        "division); ours names the file and refuses the tree.",
        "ours",
    ),
    "traceback": (
        "The stock tools end with another traceback (KeyError), on a folder without logs or a log that names no "
        "benchmark; ours names the file and refuses the tree.",
        "ours",
    ),
    "few runs": (
        "Of one or two runs the olympic mean leaves none. The stock convergence test fails; ours says that it was not "
        "made, and that there are too few runs. Both refuse the tree.",
        "ours",
    ),
    "seeds": (
        "The stock checker asks every closed run since 1.0 for a seed; the written rules ask from 4.1 on. Ours is "
        "advice before that: these submissions were published.",
        "ours",
    ),
    "status": (
        "The stock checker asks descriptions of 4.0 for the long words of `status` (its condition names 4.1, too); the "
        "submissions of 4.0 were published with the short ones. Advice in ours.",
        "ours",
    ),
    "scaled": (
        "A folder whose runs are not as many as the rules ask has a score in the stock summarizer, although the "
        "package checker refuses it. None in ours.",
        "ours",
    ),
    "v0.6": (
        "The stock summarizer reads the seconds of v0.6 as milliseconds, and drops logs that break a rule of the "
        "later checker. Ours counts what the round's tables count.",
        "ours",
    ),
    "names": (
        "A tree holds what ours refuses and the stock tools skip: see the rule in its findings.",
        "ours",
    ),
    "other": ("Any other difference.", "open"),
}


def _trees() -> list[dict]:
    return [row for name in _FILES for row in load(name)["trees"]]


def _class_of_tree(row: dict) -> str:
    """Classifies a difference between the verdicts, or between their reasons; "" if there is none."""
    ours, theirs = set(row["our_kinds"]), set(row["stock_kinds"])
    crashed = any(kind.startswith("crash") for kind in theirs)
    if crashed:
        dlrm = any(name.endswith("/dlrm") for _, name, *_ in row["differences"])
        return "dlrm" if dlrm else "no verdict" if "description" in ours else "traceback"
    if row["ours"] == row["stock"] and ours - {"other"} == theirs:
        return ""
    only = theirs - ours
    if only == {"seeds"}:
        return "seeds"
    if "description" in only and row["round"] == "4.0.0" and only <= {"description", "seeds"}:
        return "status"
    if not only:
        return "names"
    return "other"


def _class_of_folder(row: dict, kind: str, name: str, ours: object, theirs: object) -> str:
    if row["round"] == "0.6.0":
        return "v0.6"
    if kind == "convergence" and (ours, theirs) == ("not checked", "fail"):
        return "few runs"
    if kind == "convergence" and str(theirs).startswith("crash"):
        return "dlrm" if name.endswith("/dlrm") else "traceback"
    if kind == "score" and "runs" in row["our_kinds"]:
        return "scaled"
    return "other"


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
    """Table with a row per submitter whose tree or folder is judged differently."""
    rows = []
    for row in _trees():
        names = dict.fromkeys((_class_of_tree(row), *_folders(row)))
        if any(names):
            cells = (row["round"], row["submitter"], str(row["logs"]), row["ours"], _stock(row))
            rows.append((*cells, *_same([row]), ", ".join(filter(None, names))))
    head = ("round", "submitter", "logs", "ours", "stock", "same convergence", "same score", "class")
    return head, rows


def classes() -> Table:
    """Table with a row per class of differences: where it occurs, and who is right."""
    found = _trees()
    whole = Counter(_class_of_tree(row) for row in found)
    folders = Counter(name for row in found for name in _folders(row))
    rows = [
        (name, str(whole[name]), str(folders[name]), text, right)
        for name, (text, right) in CLASSES.items()
        if whole[name] or folders[name]
    ]
    return ("class", "trees", "folders", "what differs", "who is right"), rows


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


def _folders(row: dict) -> Iterator[str]:
    for kind, name, ours, theirs in row["differences"]:
        yield _class_of_folder(row, kind, name, ours, theirs)


def _stock(row: dict) -> str:
    crash = next((kind for kind in row["stock_kinds"] if kind.startswith("crash")), "")
    return crash.replace("crash: ", "traceback: ") or row["stock"]


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
