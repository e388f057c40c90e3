"""Makes the tables about `accept`, from lab/bench/results/accept_calibration.json."""

from collections import defaultdict

from tools.docs.measurements import Table, load

_FILE = "accept_calibration.json"
_EVENTS = {"passes": "all runs pass the test", "scaled": "the score is scaled"}
_PARTS = {
    "all": "all rounds",
    "fitted": "1.0 to 4.1, which the constants come from",
    "later": "5.0 to 6.0, which took no part",
}
_REPOSITORY = "https://github.com/mlcommons/training_results_v{round}/tree/HEAD/{place}"


def calibration(event: str) -> Table:
    """Table of said and observed shares of one event, in ten bins."""
    found = load(_FILE)["calibration"][event]
    rows = []
    for whole, later in zip(found["all"]["bins"], found["later"]["bins"]):
        name = f"{whole['from']:.1f} to {whole['to']:.1f}"
        rows.append((name, *_bin(whole), *_bin(later)))
    head = ("probability", "cases", "predicted", "observed")
    return (*head, "cases from 5.0 on", "predicted", "observed"), rows


def _bin(row: dict) -> tuple[str, ...]:
    if not row["cases"]:
        return "0", "", ""
    return f"{row['cases']:,}", f"{row['predicted']:.3f}", f"{row['observed']:.3f}"


def brier() -> Table:
    """Table of Brier scores: the model, the base rate, and the runs so far taken for all."""
    events = load(_FILE)["calibration"]
    rows = [
        (
            f"{_EVENTS[event]}, {_PARTS[part]}", f"{row['cases']:,}", f"{row['base_rate']:.3f}",
            f"{row['brier']:.4f}", f"{row['brier_base_rate']:.4f}", f"{row['brier_runs_so_far']:.4f}",
        )
        for event, parts in events.items()
        for part, row in parts.items()
    ]  # fmt: skip
    return ("event", "cases", "share", "`accept`", "base rate", "runs so far"), rows


def by_runs() -> Table:
    """Table of Brier scores and the factor's error, by how many runs are in."""
    rows = []
    for row in load(_FILE)["by_runs"]:
        scores = [
            f"{row[event]['brier']:.4f} / {row[event]['base_rate']:.4f} / {row[event]['runs_so_far']:.4f}"
            for event in _EVENTS
        ]
        errors = f"{row['factor_error']:.4f} / {row['factor_error_of_1']:.4f}"
        rows.append((row["runs"], f"{row['cases']:,}", *scores, errors))
    head = ("runs that are in", "cases", "Brier, passes", "Brier, scaled", "error of the factor")
    return head, rows


def pruned_tables() -> Table:
    """Table of the points that the stock checker keeps and the written rule prunes; equal rounds share a row."""
    rounds: dict[tuple, list[str]] = defaultdict(list)
    for table in load(_FILE)["prunings"]["different"]:
        for point in table["points"]:
            key = table["benchmark"], point["batch"], point["stock"], point["rule"]
            key = *key, point["stock_least"], point["rule_least"]
            rounds[key].append(table["round"].removesuffix(".0"))
    rows = [
        (benchmark, ", ".join(names), f"{batch:,}", *(f"{value:,.6g}" for value in values))
        for (benchmark, batch, *values), names in rounds.items()
    ]
    head = ("benchmark", "rounds", "batch size", "mean, stock", "mean, rule")
    return (*head, "least accepted, stock", "least accepted, rule"), rows


def pruned_results() -> Table:
    """Table of the published results whose verdict or factor differs."""
    rows = []
    for one in load(_FILE)["prunings"]["changed"]:
        name = one["round"].removesuffix(".0")
        link = f"[{one['place']}]({_REPOSITORY.format(round=name, place=one['place'])})"
        sides = [one["stock"], one["rule"]]
        words = [f"{side['verdict']}, {side['factor']:.4f}" for side in sides]
        rows.append((name, link, f"{one['batch']:,.0f}", *words))
    return ("round", "folder", "batch size", "stock", "written rule"), rows


def pruned_counts() -> Table:
    """Table that counts the differences."""
    prunings = load(_FILE)["prunings"]
    changed = prunings["changed"]
    verdicts = [(one["stock"]["verdict"], one["rule"]["verdict"]) for one in changed]
    factors = sum(one["stock"]["factor"] != one["rule"]["factor"] for one in changed)
    rows = [
        ("tables of benchmark and round", f"{prunings['tables']:,}", f"{len(prunings['different']):,}"),
        ("published closed results with a reference point", f"{prunings['results']:,}", f"{len(changed):,}"),
        ("... that get another factor", "", f"{factors:,}"),
        ("... that fail, and would pass", "", str(verdicts.count(("fail", "pass")))),
        ("... that pass, and would fail", "", str(verdicts.count(("pass", "fail")))),
    ]
    return ("what", "compared", "different"), rows
