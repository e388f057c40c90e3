"""Writes files and fills templates, for the commands that make documents."""

import re
from base64 import b64encode
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path

from common import files
from common.errors import UserError

_TEMPLATES = Path(__file__).parent / "templates"


def write(name: str | Path, text: str) -> None:
    """Writes a whole document, or leaves the old file unchanged (`common.files.whole`).

    Raises UserError if the file cannot be written.
    """
    # A log's text may hold half of a surrogate pair, which has no UTF-8 form.
    data = text.encode("utf-8", errors="backslashreplace")
    try:
        with files.whole(name) as path:
            path.write_bytes(data)
    except OSError as error:
        fix = "name a file in a folder that exists"
        raise UserError(f"{name}: cannot write ({error.strerror}); {fix}") from None


@cache
def _environment():
    # Imported here: text output needs no template engine and starts faster without it.
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup, escape

    def source(name: str) -> Markup:
        """The text of a script in the templates folder, unchanged."""
        return Markup((_TEMPLATES / name).read_text(encoding="utf-8"))

    def digest(name: str) -> str:
        """The script's digest for the page's security policy, which then allows no other script."""
        return "sha256-" + b64encode(sha256(str(source(name)).encode()).digest()).decode()

    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.globals |= {"source": source, "digest": digest}
    environment.filters |= {
        "minutes": minutes, "duration": duration, "value": value,
        # A name that a narrow column may break after an underscore; a sentence whose backticks become code.
        "breakable": lambda name: escape(name).replace("_", Markup("_<wbr>")),
        "code": lambda text: Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text)))),
    }  # fmt: skip
    return environment


def render(template: str, **values: object) -> str:
    """Fills the template; escapes everything that comes from a log or a file."""
    return _environment().get_template(template).render(**values)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns the rows of a table as lines with columns of one width."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def minutes(time: float | None) -> str:
    """Formats minutes with the digits that matter: 1145.8, 28.71, 0.4717."""
    if time is None:
        return "–"
    return f"{time:,.{1 if time >= 1000 else 2 if time >= 10 else 3 if time >= 1 else 4}f}"


def duration(milliseconds: float) -> str:
    """Formats a duration: 1 h 2 min, 3 min 4 s, 5.6 s."""
    seconds = milliseconds / 1000
    if seconds >= 3600:
        return f"{int(seconds // 3600)}\u00a0h {int(seconds % 3600 // 60)}\u00a0min"
    if seconds >= 60:
        return f"{int(seconds // 60)}\u00a0min {int(seconds % 60)}\u00a0s"
    return f"{seconds:.1f}\u00a0s"


def value(number: object) -> str:
    """Formats a number with up to five significant digits, anything else as text, cut to one line."""
    if isinstance(number, float):
        return f"{number:.5g}" if abs(number) < 1e5 else f"{number:,.0f}"
    if isinstance(number, int) and not isinstance(number, bool) and abs(number) < 10**15:
        return f"{number:,}" if abs(number) >= 10_000 else str(number)
    return str(number)[:120]
