"""Tests that the tables of results in the benchmarks' READMEs equal those of the studies."""

import json
import pathlib
import statistics

import pytest

from lab.studies.legw import Study
from lab.studies.legw_values import MNIST, PTB

ROOT = pathlib.Path(__file__).resolve().parents[3]
# The order of the rows in README and of the methods in `legw.methods`.
METHODS = ("legw", "unscaled", "linear", "linear-poly", "linear-poly-warmup", "adam")
SHOWN = {"legw-mnist": (100, 2), "legw-ptb": (1, 1)}  # In percent; decimals.


def cell(study: Study, qualities: list[float | None]) -> str:
    """The README's text for runs of one kind."""
    times, digits = SHOWN[study.name]
    values = [times * q for q in qualities if q is not None]
    if not values:
        return "diverged" if qualities else ""
    mean = f"{statistics.mean(values):.{digits}f}"
    return mean + (f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else "")


def table(study: Study) -> list[list[str]]:
    """The cells of README's table of methods by batch, without the methods' names."""
    lines = (ROOT / study.benchmark / "README.md").read_text().splitlines()
    first = next((i for i, line in enumerate(lines) if line.startswith("| method |")), None)
    if first is None:
        return []
    rows = []
    for line in lines[first:]:
        if not line.startswith("|"):
            break
        rows.append([text.strip() for text in line.strip("|").split("|")][1:])
    return rows


@pytest.mark.parametrize("study", [MNIST, PTB], ids=lambda s: s.name)
def test_the_table_in_the_readme_is_the_studys(study) -> None:
    results = ROOT / "lab/studies" / study.name / "results.json"
    written = json.loads(results.read_text()) if results.is_file() else []
    records = [r for r in written if r["part"] == "methods"]
    actual = table(study)
    if not records:
        assert not actual, "a table in README without results of the study"
        return
    header, _, *rows = actual
    batches = sorted({r["batch"] for r in records})
    assert header == [f"{batch:,}" for batch in batches]
    expected = {
        method: [
            cell(study, [r["quality"] for r in records if (r["method"], r["batch"]) == (method, batch)])
            for batch in batches
        ]
        for method in METHODS
        if any(r["method"] == method for r in records)
    }
    assert rows == list(expected.values())
