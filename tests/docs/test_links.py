"""Tests that links lead to files and anchors, lists are complete, promises name tests, figures equal their files."""

import ast
import functools
import json
import re
from typing import Any

import pytest

from tests.test_imports import ROOMS
from tools.docs import forecast_tables, markdown

NAMES = markdown.tracked("*.md")
page = functools.cache(markdown.page)


@pytest.mark.parametrize("name", NAMES)
def test_links_hold(name: str) -> None:
    broken = []
    for link in page(name).links:
        place = markdown.target(name, link)
        if place is None:
            continue
        file, anchor = place
        path = markdown.ROOT / file
        # A link to a folder has no page in the site.
        if file.startswith("..") or not path.is_file():
            broken.append(f"{link}: no such file")
        elif anchor and file.endswith(".md") and anchor not in page(file).anchors:
            broken.append(f"{link}: no such anchor; there are {', '.join(sorted(page(file).anchors))}")
    assert not broken, f"{name}: {broken}"


@pytest.mark.parametrize("name", NAMES)
def test_files_that_are_named_are_there(name: str) -> None:
    """Checks paths in running text, such as `common/train/loop.py`; BENCHMARK and NAME are placeholders."""
    folders = {path.name for path in markdown.ROOT.iterdir() if path.is_dir()}
    text = (markdown.ROOT / name).read_text(encoding="utf-8")
    paths = re.findall(r"(?<![\w/.-])((?:[\w-]+/)+[\w-]+\.(?:py|sh|json|md|sbatch))\b", text)
    ours = [file for file in paths if file.split("/")[0] in folders and not re.search("NAME|BENCHMARK", file)]
    missing = [file for file in ours if not (markdown.ROOT / file).is_file()]
    assert not missing, f"{name} names files that are not there: {missing}"


def test_the_main_documents_are_checked() -> None:
    assert {"README.md", "CONTRIBUTING.md", "docs/index.md", "resnet/README.md"} <= set(NAMES)


def test_links_and_anchors_are_found() -> None:
    text = "# A b, c & 1.4\n\n[x](y.md#z) ![p](p.png) `[n](no.md)`\n\n```\n[n](no.md)\n```\n"
    text_parts = markdown.parse(text)
    assert (text_parts.anchors, text_parts.links) == (frozenset({"a-b-c--14"}), ("y.md#z", "p.png"))


@pytest.mark.parametrize(
    ("name", "link", "expected"),
    [
        ("docs/a.md", "../README.md#quick-start", ("README.md", "quick-start")),
        ("docs/presets/a.md", "../b.md", ("docs/b.md", "")),
        ("README.md", "#here", ("README.md", "here")),
        ("README.md", "../x.md", ("../x.md", "")),
        ("README.md", "https://example.org/a", None),
    ],
)
def test_what_a_link_means(name: str, link: str, expected: tuple[str, str] | None) -> None:
    assert markdown.target(name, link) == expected


# Matches "mlperf_facts 1.4 and 1.5", "tf_distribution_facts 1, traps a to d", "docs/sources.md, mlperf 1.4".
_CITED = re.compile(
    r"(?:\b(mlperf|tf_distribution)_facts|docs/sources\.md,\s+(mlperf|tf))"
    r"(?:\s|#)+(?:section\s+)?(\d+(?:\.\d+)?(?:(?:,| and)\s+\d+(?:\.\d+)?(?!\w))*)"
)


def headings() -> set[tuple[str, str]]:
    """(notes, number) of every numbered entry."""
    text = (markdown.ROOT / "docs/sources.md").read_text(encoding="utf-8")
    return set(re.findall(r"^###? (mlperf|tf) (\d+(?:\.\d+)?) \S", text, re.M))


def citations() -> set[tuple[str, str]]:
    actual = set()
    for name in markdown.tracked("*.py", "*.sh", "*.md"):
        if name == "docs/sources.md" or name.startswith("tests/docs/"):
            continue
        for old, new, numbers in _CITED.findall((markdown.ROOT / name).read_text(encoding="utf-8")):
            notes = {"tf_distribution": "tf"}.get(old or new, old or new)
            actual |= {(notes, number) for number in re.findall(r"\d+(?:\.\d+)?", numbers)}
    return actual


def test_every_cited_entry_is_there() -> None:
    entries, cited = headings(), citations()
    assert {("mlperf", "1.4"), ("mlperf", "2"), ("tf", "1")} <= cited & entries
    assert cited <= entries, f"docs/sources.md lacks {sorted(cited - entries)}"


def test_every_page_is_in_the_menu_or_listed() -> None:
    """The menu has at most 25 entries and fits on a screen; docs/index.md leads to all pages."""
    text = (markdown.ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    menu = re.findall(r"[\w/.-]+\.md\b", text[text.index("\n  - README.md") :])
    assert len(menu) <= 25
    listed = {markdown.target("docs/index.md", link) for link in markdown.page("docs/index.md").links}
    pages = {
        name for name in markdown.tracked("*.md") if re.match(r"docs/|[A-Z]+\.md|[a-z_]+/README\.md", name)
    }
    assert pages <= {*menu, *(target[0] for target in listed if target)}


def test_architecture_names_every_room_in_order() -> None:
    text = (markdown.ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    common, program = text[text.index("Rooms of `common/`") :].split("Rooms of `timetotrain/`")
    rows = re.findall(r"^\| (`[a-z_./]+`(?:, `[a-z_./]+`)?) \|", common, re.M)
    assert [room.strip("`/").removesuffix(".py") for row in rows for room in row.split(", ")] == list(ROOMS)
    folders = {path.parent.name for path in (markdown.ROOT / "timetotrain").glob("*/*.py")}
    assert set(re.findall(r"^\| `([a-z]+)/` \|", program, re.M)) == folders


def test_the_path_of_a_benchmark_is_short() -> None:
    text = (markdown.ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    path = text[text.index("## The path of one benchmark") : text.index("## The layers")]
    files = re.findall(r"\]\(\.\./([a-z_/]+\.py)\)", path)
    lines = sum(len((markdown.ROOT / file).read_text(encoding="utf-8").splitlines()) for file in files)
    assert 9 <= len(files) <= 12 and lines <= 1375, lines


SECURITY = (markdown.ROOT / "docs/security.md").read_text(encoding="utf-8")
NAMED = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", SECURITY)


def test_every_promise_names_a_test() -> None:
    tables = re.findall(r"^\| what \| promise \| test \|\n((?:\|.*\n)+)", SECURITY, re.MULTILINE)
    rows = [line for table in tables for line in table.splitlines()[1:]]
    assert len(rows) == len(NAMED) > 20


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_the_test_is_there(file: str, name: str) -> None:
    tree = ast.parse((markdown.ROOT / file).read_text(encoding="utf-8"))
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


README = (markdown.ROOT / "README.md").read_text(encoding="utf-8")
RESULTS = markdown.ROOT / "lab/bench/results"


def read(name: str) -> Any:
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def test_the_step_on_the_gpu() -> None:
    lines = map(json.loads, (RESULTS / "gpu/h200-2026-11.jsonl").read_text(encoding="utf-8").splitlines())
    row = next(line for line in lines if line.get("benchmark") == "resnet")
    ms = row["programs"][0]["ms"]
    assert row["batch"]["train"] == 256
    assert f"256 images takes {ms:.1f} ms in bf16: {256 / ms * 1000:,.0f} images/s" in README


def test_the_seconds_of_the_checker() -> None:
    row = read("compliance.json")["rows"]["1000 published v5.0 logs"]
    ours, stock = row["ours"]["seconds"], row["stock"]["seconds"]
    assert f"1,000 published v5.0 logs in {ours:.2f} s; MLCommons' checker takes {stock:.1f} s" in README


def test_the_published_logs() -> None:
    rounds = read("compliance_published.json")["rounds"].values()
    assert f"On {sum(each['logs'] for each in rounds):,} published logs, four verdicts differ" in README
    assert sum(each["stock pass"] - each["ours pass"] for each in rounds) == 4


def test_the_errors_of_the_forecasts() -> None:
    """README and docs/prediction.md have the true error that systems/forecast/data/errors.json has."""
    assert forecast_tables.readme() in README
    page = (markdown.ROOT / "docs/prediction.md").read_text(encoding="utf-8")
    assert "\n".join(forecast_tables.page()) in page


def test_the_tables_of_plans() -> None:
    page = (markdown.ROOT / "docs/plan.md").read_text(encoding="utf-8")
    for name, lines in forecast_tables.plans().items():
        assert f"<!-- table: {name} -->\n\n" + "\n".join(lines) + "\n\n<!-- end of table -->" in page


def test_the_tables_of_the_site_are_whole() -> None:
    tables = (
        forecast_tables.wrong(),
        forecast_tables.coverage(),
        forecast_tables.chips(),
        forecast_tables.offers(),
    )
    for head, rows in tables:
        assert rows and all(len(row) == len(head) for row in rows)
