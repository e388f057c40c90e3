"""The repository's Markdown files: which there are, what each links to, and the anchors each offers."""

from __future__ import annotations

import dataclasses
import html.parser
import subprocess
from pathlib import Path
from urllib.parse import unquote, urlsplit

import markdown
from pymdownx import slugs

ROOT = Path(__file__).resolve().parents[2]
# What mkdocs.yml asks for: tables, code blocks, and headings' anchors as GitHub makes them.
EXTENSIONS = ("tables", "pymdownx.superfences", "toc")
OPTIONS = {"toc": {"slugify": slugs.slugify(case="lower")}}


@dataclasses.dataclass(frozen=True)
class Page:
    """What a rendered file offers and asks for: the anchors in it, and the targets of its links and pictures."""

    anchors: frozenset[str]
    links: tuple[str, ...]


def tracked(*patterns: str) -> list[str]:
    """Files of the repository that match, as paths from its root: those git tracks, and new ones it does not ignore.

    Raises:
      subprocess.CalledProcessError: this is no checkout.
    """
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run([*command, "--", *patterns], capture_output=True, text=True, check=True)
    names = {name for name in done.stdout.split("\0") if name}
    return sorted(name for name in names if (ROOT / name).is_file())


def parse(text: str) -> Page:
    """The anchors and links of Markdown text; those inside code are neither."""
    reader = _Reader()
    reader.feed(markdown.markdown(text, extensions=list(EXTENSIONS), extension_configs=OPTIONS))
    return Page(frozenset(reader.anchors), tuple(reader.links))


def page(name: str) -> Page:
    """The `Page` of a file, named from the root."""
    return parse((ROOT / name).read_text(encoding="utf-8"))


def target(name: str, link: str) -> tuple[str, str] | None:
    """(file, anchor) that a link in the file `name` means, the file named from the root.

    None is for links that leave the repository: another site, or mail. A file outside of the root keeps its "..".
    """
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return None
    if not parts.path:
        return name, unquote(parts.fragment)
    steps: list[str] = []
    for step in (Path(name).parent / unquote(parts.path)).parts:
        if step == ".." and steps and steps[-1] != "..":
            steps.pop()
        else:
            steps.append(step)
    return "/".join(steps), unquote(parts.fragment)


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
