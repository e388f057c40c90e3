"""Tests that the site builds without a broken link or anchor, and that tables equal lab/bench/results/*.json."""

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

from tools.docs import built, markdown, measurements, performance


def build(folder: pathlib.Path, root: pathlib.Path = markdown.ROOT) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    return subprocess.run(
        command,
        cwd=root,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_site_builds_and_has_every_page(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("mkdocs", reason="mkdocs is not installed: pip install '.[docs]'")
    done = build(tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    for name in markdown.tracked("*.md"):
        page = tmp_path / name
        html = page.with_name("index.html") if page.stem == "README" else page.with_suffix(".html")
        assert html.is_file(), f"{name} has no page"
    for name in built.render():
        assert (tmp_path / name).with_suffix(".html").is_file(), f"{name} has no page"
    # The site includes linked pictures, results and code.
    assert (tmp_path / "docs/report.png").is_file() and (
        tmp_path / "lab/studies/ucf101/results.csv"
    ).is_file()
    front = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert 'href="docs/getting-started.html"' in front and "https://fonts" not in front


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
    comparisons = [row for row in measurements.comparisons() if row.verdict == "missed"]
    bounds = [row for row in measurements.limits() if not row.is_met]
    page = TEXTS["docs/performance.md"]
    assert all(
        f"| {row.case}, {row.peer} | {row.ratio:.2f} | at least {row.goal:.2f} |" in page
        for row in comparisons
    )
    assert all(f"| {row.case} | {row.measured} | {row.goal} |" in page for row in bounds)
    assert built.performance().count("| missed |") == len(comparisons) + len(bounds) > 0


def test_rows_have_the_files_ratios_and_goals() -> None:
    rows = {(row.case, row.peer): row for row in measurements.steps("training")}
    row = rows["ResNet-50, 224 pixels, batch 16, fp32", "PyTorch"]
    file = json.loads((measurements.RESULTS / "steps.json").read_text())
    contenders = file["cases"]["resnet-fp32"]["contenders"]
    assert row.ratio == pytest.approx(
        contenders["torch"]["cpu_seconds"] / contenders["ours"]["cpu_seconds"], rel=0.2
    )
    assert row.goal == contenders["torch"]["bar"] and row.ours == "13.7 images/s"
    (epoch,) = {row.ours for row in measurements.steps("small") if "4 layers" in row.case}
    assert epoch == f"{600 * file['cases']['perceptron']['contenders']['ours']['seconds']:.2f} s an epoch"


def test_every_file_of_results_is_named() -> None:
    linked = set(re.findall(r"lab/bench/results/(\w+\.json)", built.performance()))
    assert linked == {path.name for path in measurements.RESULTS.glob("*.json")}


def test_check_says_which_page_is_out_of_date(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture) -> None:
    for page, text in TEXTS.items():
        (tmp_path / page).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / page).write_text(text)
    assert performance.main(["--check"], tmp_path) == 0
    page = tmp_path / "docs/performance.md"
    page.write_text(page.read_text().replace("1.86 PyTorch", "1.68 PyTorch"))
    assert performance.main(["--check"], tmp_path) == 1
    assert (
        capsys.readouterr().err
        == "error: docs/performance.md: its tables differ from lab/bench/results; run make docs\n"
    )
    assert performance.main([], tmp_path) == 0
    assert page.read_text() == TEXTS["docs/performance.md"]
