"""Makes the tables about `accept`, from lab/bench/results/accept_calibration.json."""

from tools.docs.measurements import Table, load

_FILE = "accept_calibration.json"
_EVENTS = {"passes": "all runs pass the test", "scaled": "the score is scaled"}
_PARTS = {
    "all": "all rounds",
    "fitted": "1.0 to 4.1, which the constants come from",
    "later": "5.0 to 6.0, which took no part",
}


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
