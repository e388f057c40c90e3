"""Tests that the generated tables of the documents equal lab/bench/results/*.json."""

from __future__ import annotations

import json
import pathlib
import re

import pytest

from tools.docs import built, markdown, measurements, performance

COMPARED = ("training", "small", "inference", "parts", "layers", "inputs")
TEXTS = {page: (performance.ROOT / page).read_text(encoding="utf-8") for page in performance.PAGES}


@pytest.mark.parametrize("page", performance.PAGES)
def test_a_page_has_the_tables_of_the_files(page: str) -> None:
    text = TEXTS[page]
    assert performance.names(text), f"{page} has no generated table"
    assert text.count("<!-- table: ") == text.count("<!-- end of table -->") == len(performance.names(text))
    assert performance.fill(text) == text, "run make docs"


def test_every_table_is_in_a_page_once() -> None:
    assert sorted(name for text in TEXTS.values() for name in performance.names(text)) == sorted(
        performance.TABLES
    )


def test_a_built_page_has_a_title_and_its_tables() -> None:
    texts = built.render()
    assert set(texts) == {*built.PAGES, "built/index.md"}
    for path, text in texts.items():
        assert text.startswith("# ") and path.startswith(f"{built.FOLDER}/")
        assert path == "built/index.md" or "\n|---|" in text, f"{path} has no table"
        assert not (markdown.ROOT / path).exists()
    assert all(path.removeprefix("built/") in texts["built/index.md"] for path in built.PAGES)


def test_every_missed_goal_is_shown() -> None:
    """Compares the verdicts with the ones in the files, where a file has one."""
    rows = [row for name in COMPARED for row in getattr(measurements, name)()]
    missed = {row.case for row in rows if row.verdict == "missed"}
    for layers, found in json.loads((measurements.RESULTS / "mnist_mlp.json").read_text())["layers"].items():
        if found["meets_bar"] is not None:
            case = next(row.case for row in rows if row.case.startswith(f"MNIST perceptron, {layers} layer"))
            assert (case in missed) == (not found["meets_bar"])
    for file in ("transformer_step.json", "lstm_gnmt.json", "lstm_layer.json"):
        for case in json.loads((measurements.RESULTS / file).read_text())["cases"].values():
            goals = [row for row in rows if row.file == file and row.ratio == case["best_tf_peer_over_ours"]]
            assert len(goals) == 1
            assert goals[0].verdict == ("met" if case["meets_bar"] else "missed")
    assert TEXTS["docs/performance.md"].count("| missed |") == len(
        [row for row in rows if row.verdict == "missed"]
    ) + len([row for row in measurements.limits() if not row.met])


def test_ratios_are_times_over_ours() -> None:
    rows = {(row.case, row.peer): row for row in measurements.training()}
    row = rows["ResNet-50, 224 pixels, batch 16, fp32", "PyTorch"]
    step = json.loads((measurements.RESULTS / "resnet_step.json").read_text())["step"]["fp32"]
    assert row.ratio == pytest.approx(
        step["torch_eager"]["cpu_seconds"] / step["ours"]["cpu_seconds"], rel=0.2
    )
    assert row.goal == step["torch_eager"]["bar"]


def test_every_file_of_results_is_named() -> None:
    linked = set(re.findall(r"lab/bench/results/(\w+\.json)", TEXTS["docs/performance.md"]))
    assert linked == {path.name for path in measurements.RESULTS.glob("*.json")}


def test_check_says_which_page_is_out_of_date(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture) -> None:
    for page, text in TEXTS.items():
        (tmp_path / page).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / page).write_text(text)
    assert performance.main(["--check"], tmp_path) == 0
    page = tmp_path / "docs/performance.md"
    page.write_text(page.read_text().replace("1.03", "1.30"))
    assert performance.main(["--check"], tmp_path) == 1
    assert (
        capsys.readouterr().err
        == "error: docs/performance.md: its tables differ from lab/bench/results; run make docs\n"
    )
    assert performance.main([], tmp_path) == 0
    assert page.read_text() == TEXTS["docs/performance.md"]
