"""Reads the repository's Markdown files: their paths, links and anchors."""

import dataclasses
import html.parser
import subprocess
from pathlib import Path
from urllib.parse import unquote, urlsplit

import markdown
from pymdownx import slugs

ROOT = Path(__file__).resolve().parents[2]
# The extensions in mkdocs.yml: tables, code blocks, and GitHub-style heading anchors.
EXTENSIONS = ("tables", "pymdownx.superfences", "toc")
OPTIONS = {"toc": {"slugify": slugs.slugify(case="lower")}}


@dataclasses.dataclass(frozen=True)
class Page:
    """A rendered file: its anchors, and the targets of its links and pictures."""

    anchors: frozenset[str]
    links: tuple[str, ...]


def tracked(*patterns: str) -> list[str]:
    """Lists the repository's matching files, as paths from its root: files in git, and new files that are not ignored.

    Raises:
      subprocess.CalledProcessError: the folder is not a checkout.
    """
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run([*command, "--", *patterns], capture_output=True, text=True, check=True)
    names = {name for name in done.stdout.split("\0") if name}
    return sorted(name for name in names if (ROOT / name).is_file())


def parse(text: str) -> Page:
    """Finds the anchors and links in Markdown text, except inside code."""
    reader = _Reader()
    reader.feed(markdown.markdown(text, extensions=list(EXTENSIONS), extension_configs=OPTIONS))
    return Page(frozenset(reader.anchors), tuple(reader.links))


def page(name: str) -> Page:
    """Parses a file; its path is relative to the root."""
    return parse((ROOT / name).read_text(encoding="utf-8"))


def target(name: str, link: str) -> tuple[str, str] | None:
    """Resolves a link in the file `name` to (file, anchor), with the file's path relative to the root.

    Returns None for links to other sites or mail addresses. A file outside the root keeps its "..".
    """
    address = urlsplit(link)
    if address.scheme or address.netloc:
        return None
    if not address.path:
        return name, unquote(address.fragment)
    steps: list[str] = []
    for step in (Path(name).parent / unquote(address.path)).parts:
        if step == ".." and steps and steps[-1] != "..":
            steps.pop()
        else:
            steps.append(step)
    return "/".join(steps), unquote(address.fragment)


class _Reader(html.parser.HTMLParser):
    """Collects ids, hrefs and srcs."""

    def __init__(self) -> None:
        super().__init__()
        self.anchors: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value and (name == "id" or (tag, name) == ("a", "name")):
                self.anchors.append(value)
            elif value and (tag, name) in (("a", "href"), ("img", "src")):
                self.links.append(value)
