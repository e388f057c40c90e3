"""Tests that the lists in the documents are complete: cited entries of sources.md, pages, folders of common/."""

import re

from tests.test_imports import ROOMS
from tools.docs import markdown

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
    found = set()
    for name in markdown.tracked("*.py", "*.sh", "*.md"):
        if name == "docs/sources.md" or name.startswith("tests/docs/"):
            continue
        for old, new, numbers in _CITED.findall((markdown.ROOT / name).read_text(encoding="utf-8")):
            notes = {"tf_distribution": "tf"}.get(old or new, old or new)
            found |= {(notes, number) for number in re.findall(r"\d+(?:\.\d+)?", numbers)}
    return found


def test_every_cited_entry_is_there() -> None:
    known, cited = headings(), citations()
    assert {("mlperf", "1.4"), ("mlperf", "2"), ("tf", "1")} <= cited & known
    assert cited <= known, f"docs/sources.md lacks {sorted(cited - known)}"


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
    folders = {path.parent.name for path in (markdown.ROOT / "timetotrain").glob("*/__init__.py")}
    assert set(re.findall(r"^\| `([a-z]+)/` \|", program, re.M)) == folders


def test_the_path_of_a_benchmark_has_at_most_12_files() -> None:
    text = (markdown.ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    path = text[text.index("## The path of one benchmark") : text.index("## The layers")]
    assert 9 <= len(re.findall(r"\]\(\.\./[a-z_/]+\.py\)", path)) <= 12
