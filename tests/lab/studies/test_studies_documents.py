"""Tests that the tables of results in the benchmarks' READMEs equal those of the studies."""

import csv
import itertools
import json
import pathlib
import statistics
from collections import Counter

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
    published = json.loads(results.read_text()) if results.is_file() else []
    records = [r for r in published if r["part"] == "methods"]
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


def flip_p_value(differences: list[int]) -> float:
    """The exact two-sided p-value of the sign-flip test: P(|sum| at least as large) under random fair signs."""
    sums = Counter({0: 1})
    for size in differences:
        sums = Counter(
            {s: sums[s - size] + sums[s + size] for s in {t + d for t in sums for d in (size, -size)}}
        )
    return sum(n for s, n in sums.items() if abs(s) >= abs(sum(differences))) / 2 ** len(differences)


def test_the_flip_test_of_one_seed_is_mcnemars() -> None:
    assert flip_p_value([1] * 5 + [-1]) == 2 * (1 + 6) / 2**6 and flip_p_value([0, 1, -1]) == 1


def test_tsm_and_tsn_in_the_readme_are_those_of_the_runs() -> None:
    folder, readme = ROOT / "lab/studies/ucf101", (ROOT / "tsm_kinetics/README.md").read_text()
    runs, clips = (
        list(csv.DictReader((folder / name).read_text().splitlines()))
        for name in ("results.csv", "predictions.csv")
    )
    for model in ("tsm", "tsn"):
        mine = [run for run in runs if run["model"] == model]
        tops = [
            100 * statistics.mean(clip[f"{model}-{run['seed']}"] == clip["label"] for clip in clips)
            for run in mine
        ]
        assert tops == pytest.approx([100 * float(run["top1"]) for run in mine], abs=0.005)
        cells = [", ".join(f"{top:.1f} %" for top in tops), f"{statistics.mean(tops):.1f} %"]
        minutes = statistics.mean(float(run["minutes"]) for run in mine)
        assert f"| `{model}` | {' | '.join(cells)} | {statistics.stdev(tops):.1f} | {minutes:.1f} |" in readme
    groups: Counter[str] = (
        Counter()
    )  # A group is the clips of one person in one place: v_PullUps_g10_c01.mp4.
    for clip, model, seed in itertools.product(clips, ("tsm", "tsn"), "012"):
        right = clip[f"{model}-{seed}"] == clip["label"]
        groups[clip["clip"].rpartition("_c")[0]] += right if model == "tsm" else -right
    assert f"gives p = {flip_p_value(list(groups.values())):.2g}." in readme
