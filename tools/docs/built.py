"""The pages that `make docs` builds and git does not hold.

`PAGES` maps a page's path on the site to the function that returns its Markdown. To add a page, add a line to `PAGES`.
Other pages name it as `build/site/built/NAME.html` and do not link to it: its file is not there before `make docs`. A
built page may link to committed files, as `../docs/NAME.md`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from tools.docs import tables
from tools.docs.measurements import Table, markdown_table
from tools.mutate import summary

FOLDER = "built"


def page(title: str, text: str, *sections: tuple[str, Table]) -> str:
    """Returns a page: its title, an introduction, and tables, each after a sentence."""
    blocks = [f"{sentence}\n\n{markdown_table(*table)}" for sentence, table in sections]
    return "\n\n".join([f"# {title}", text, *blocks]) + "\n"


def mutations() -> str:
    """Returns the outcomes of `make mutate`."""

    def results(path: Path) -> dict:
        return json.loads(path.read_text(encoding="utf-8"))

    return "\n\n".join(
        [
            "# Faults that the tests must notice",
            "`make mutate` puts one fault at a time into a copy of the project and runs its tests.",
            "The faults are written by hand, from the papers and the logs.",
            summary.summary(results(summary.RESULTS)),
        ]
    )


def scaling() -> str:
    """Returns the measurements of docs/scaling.md."""
    return page(
        "Results of scaling",
        "Local processes on two cores. The bytes are those of a cluster; the seconds are not.",
        (
            "The update, whole and sharded. The goal is 1.3 / N; the paper's share is for 2,048 TPU cores.",
            tables.update(),
        ),
        (
            "ResNet-50's gradient sums with LARS. `plain` sums each gradient by itself, the others use 32 MB buckets.",
            tables.exchange(),
        ),
    )


PAGES: dict[str, Callable[[], str]] = {
    "built/mutations.md": mutations,
    "built/scaling.md": scaling,
}


def render() -> dict[str, str]:
    """Returns {path: Markdown} of every built page, and of their list, built/index.md."""
    texts = {path: text() for path, text in PAGES.items()}
    lines = [
        f"- [{text.partition(chr(10))[0].removeprefix('# ')}]({path.removeprefix(FOLDER + '/')})"
        for path, text in texts.items()
    ]
    index = "\n".join(["# Built pages", "", "`make docs` builds these from the results.", "", *lines, ""])
    return texts | {f"{FOLDER}/index.md": index}
