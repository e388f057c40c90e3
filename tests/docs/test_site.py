"""Tests that the site of all documents builds without a broken link or anchor."""

import os
import pathlib
import subprocess
import sys

import pytest

from tools.docs import built, markdown

pytest.importorskip("mkdocs", reason="mkdocs is not installed: pip install '.[docs]'")


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
    done = build(tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    for name in markdown.tracked("*.md"):
        page = tmp_path / name
        made = page.with_name("index.html") if page.stem == "README" else page.with_suffix(".html")
        assert made.is_file(), f"{name} has no page"
    for name in built.render():
        assert (tmp_path / name).with_suffix(".html").is_file(), f"{name} has no page"
    # The site includes linked pictures, results and code.
    assert (tmp_path / "docs/report.png").is_file() and (
        tmp_path / "lab/studies/ucf101/results.csv"
    ).is_file()
    front = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert 'href="docs/getting-started.html"' in front and "https://fonts" not in front
