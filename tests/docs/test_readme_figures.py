"""Tests that the figures of README.md equal the files that hold them."""

import json
from typing import Any

from tools.docs import markdown

TEXT = (markdown.ROOT / "README.md").read_text(encoding="utf-8")
RESULTS = markdown.ROOT / "lab/bench/results"


def read(name: str) -> Any:
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def test_the_step_on_the_gpu() -> None:
    lines = map(json.loads, (RESULTS / "gpu/h200-2026-11.jsonl").read_text(encoding="utf-8").splitlines())
    found = next(line for line in lines if line.get("benchmark") == "resnet")
    ms = found["programs"][0]["ms"]
    assert found["batch"]["train"] == 256
    assert f"256 images takes {ms:.1f} ms in bf16: {256 / ms * 1000:,.0f} images/s" in TEXT


def test_the_seconds_of_the_checker() -> None:
    row = read("compliance.json")["rows"]["1000 published v5.0 logs"]
    ours, stock = row["ours"]["seconds"], row["stock"]["seconds"]
    assert f"1,000 published v5.0 logs in {ours:.2f} s; MLCommons' checker takes {stock:.1f} s" in TEXT


def test_the_published_logs() -> None:
    rounds = read("compliance_published.json")["rounds"].values()
    assert f"On {sum(each['logs'] for each in rounds):,} published logs, four verdicts differ" in TEXT
    assert sum(each["stock pass"] - each["ours pass"] for each in rounds) == 4


def test_the_errors_of_the_forecasts() -> None:
    """README and docs/prediction.md have the true error that systems/forecast/data/errors.json has."""
    kept = json.loads((markdown.ROOT / "systems/forecast/data/errors.json").read_text(encoding="utf-8"))
    later, chip, system = (kept[name]["law"] for name in ("later rounds", "accelerator", "system"))
    assert f"half are within {later[0]:.1f} %, nine of ten within {later[1]:.1f} %" in TEXT
    assert (
        f"scores: {chip[0]:.1f} and {chip[1]:.1f} %, without the system's: {system[0]:.1f} and {system[1]:.1f} %"
        in TEXT
    )
    page = (markdown.ROOT / "docs/prediction.md").read_text(encoding="utf-8")
    for row in kept.values():
        assert (
            f"| {row['scores']:,} | {row['law'][0]:.1f} / {row['law'][1]:.1f} | {row['inside']:.0%} |" in page
        )
