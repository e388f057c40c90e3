"""Tests that every relative link of every Markdown file leads to an existing file, and to an anchor in it."""

import functools
import re

import pytest

from tools.docs import markdown

NAMES = markdown.tracked("*.md")
page = functools.cache(markdown.page)


@pytest.mark.parametrize("name", NAMES)
def test_links_hold(name: str) -> None:
    broken = []
    for link in page(name).links:
        found = markdown.target(name, link)
        if found is None:
            continue
        file, anchor = found
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
    named = re.findall(r"(?<![\w/.-])((?:[\w-]+/)+[\w-]+\.(?:py|sh|json|md|sbatch))\b", text)
    ours = [file for file in named if file.split("/")[0] in folders and not re.search("NAME|BENCHMARK", file)]
    missing = [file for file in ours if not (markdown.ROOT / file).is_file()]
    assert not missing, f"{name} names files that are not there: {missing}"


def test_the_main_documents_are_checked() -> None:
    assert {"README.md", "CONTRIBUTING.md", "docs/index.md", "resnet/README.md"} <= set(NAMES)


def test_links_and_anchors_are_found() -> None:
    text = "# A b, c & 1.4\n\n[x](y.md#z) ![p](p.png) `[n](no.md)`\n\n```\n[n](no.md)\n```\n"
    found = markdown.parse(text)
    assert (found.anchors, found.links) == (frozenset({"a-b-c--14"}), ("y.md#z", "p.png"))


@pytest.mark.parametrize(
    ("name", "link", "found"),
    [
        ("docs/a.md", "../README.md#quick-start", ("README.md", "quick-start")),
        ("docs/presets/a.md", "../b.md", ("docs/b.md", "")),
        ("README.md", "#here", ("README.md", "here")),
        ("README.md", "../x.md", ("../x.md", "")),
        ("README.md", "https://example.org/a", None),
    ],
)
def test_what_a_link_means(name: str, link: str, found: tuple[str, str] | None) -> None:
    assert markdown.target(name, link) == found
