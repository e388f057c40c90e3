"""Writes OUT/data.html, a self-contained page that shows the result of `timetotrain data`."""

import base64
import io
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from common.data.folder_conversion import Card, Conversion
from common.data.report import Report
from common.files import write_atomically

NAME = "data.html"
_FINDINGS = {
    "suspicious": "Suspicious",
    "changed": "Changed",
    "left_out": "Left out, by reason",
    "skipped": "Skipped: no data",
}
# Display width of pictures in pixels: the minimum, the maximum, and the full page width for strips of frames.
_LEAST_WIDTH, _MOST_WIDTH, _WIDE = 128, 320, 960


def write(
    out: Path, conversion: Conversion, cards: Sequence[Card], preview_note: str, report: Report
) -> Path:
    """Writes the page; returns its path. Raises UserError if the folder cannot be written.

    Args:
      preview_note: a sentence that says how the examples were read, or why there are none.
      report: what was left out, skipped, changed and suspicious.
    """
    import jinja2  # Imported late: a conversion without a page does not need it.

    description = conversion.description
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    template = environment.from_string(Path(__file__).with_suffix(".html").read_text(encoding="utf-8"))
    files = description.files.values()
    facts = [
        ("split", f"{description.split['train']} for training, {description.split['eval']} for evaluation"),
        *conversion.facts,
        ("files", f"{len(description.files)}, {_bytes(sum(size for size, _ in files))}"),
        ("left out", str(len(report.lines))),
        *((f"{what}, chosen", f"{value}, by {by}") for what, (value, by) in report.choices.items()),
    ]
    card_fields = [
        {
            "title": c.title,
            "lines": c.lines,
            "width": _width(c.picture),
            "picture": base64.b64encode(c.picture or b"").decode(),
        }
        for c in cards
    ]
    text = template.render(
        title=f"Data for {description.benchmark}: {out.name}",
        made_by=description.made_by,
        digest=description.digest,
        facts=facts,
        cards=card_fields,
        preview_note=preview_note,
        balance=conversion.balance,
        counted=conversion.counted,
        most=max((train + held_out for _, train, held_out in conversion.balance), default=1) or 1,
        broken=report.lines,
        findings=[(title, list(getattr(report, kind).items())) for kind, title in _FINDINGS.items()],
        fields=[*description.fields.items(), *description.defaults.items()],
    )
    path = out / NAME
    # A file name that is not UTF-8 becomes an escape.
    write_atomically(path, text.encode(errors="backslashreplace"))
    return path


def _width(picture: bytes | None) -> int:
    if not picture:
        return 0
    with Image.open(io.BytesIO(picture)) as image:
        width, height = image.size
        return min(max(width, _LEAST_WIDTH), _WIDE if width > 3 * height else _MOST_WIDTH)


def _bytes(count: int) -> str:
    for unit in ("bytes", "KB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"
