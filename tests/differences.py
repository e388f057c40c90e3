"""Holds the largest differences between presets and their sources that tests measure, and whose code each test follows.

A part of a preset is measured for one row, which stands for those of the same framework with the same settings.

python -m tests.differences      runs the tests, and writes pinned/differences.json and the table of docs/presets.md
"""

import collections
import dataclasses
import functools
import json
import math
import os
import pathlib
import sys
from typing import Any

import pytest

from tests import sources
from tests.benchmarks import preset_of
from tests.pinned import test_headers

FILE = pathlib.Path(__file__).parent / "pinned" / "differences.json"
PAGE = pathlib.Path(__file__).parents[1] / "docs" / "presets.md"
BEGIN, END = "<!-- steps: python -m tests.differences -->\n", "<!-- end of steps -->\n"
TESTS = ("test_trajectories.py", "test_vendors.py", "test_way_in.py", "common/text/test_text_beam.py",
         "maskrcnn/test_maskrcnn_vendors.py")  # fmt: skip
GROUPS = ("weights", "biases", "norms")
WRITE = "WRITE_DIFFERENCES"  # Variable of the environment: the file that `hold` adds to.
# Part -> the fields of a configuration that a row must share with the row that stands for it.
SETTINGS = {
    "input": (
        *("data", "details.resize", "details.colors", "details.crop_overlaps"),
        *("details.min_object_covered", "details.aspect_range", "details.max_attempts"),
    ),
    "targets": ("details.geometry", "details.rpn_inside", "match_overlap"),
    "evaluation": ("decode", "details.geometry", "network"),
}
_ELSEWHERE = ("cache", "shuffle_buffer")  # What leaves the pixels alone.
# (benchmark, part, framework) -> why no test measures it.
UNMEASURED = {
    ("gnmt", "input", "TensorFlow"): "lengths and buckets only; no pixels",
    ("gnmt", "input", "PyTorch"): "lengths and buckets only; no pixels",
    (
        "transformer",
        "input",
        "TensorFlow",
    ): "packed by tensor2tensor's rule, as tests of transformer/packing.py hold",
    (
        "transformer",
        "input",
        "JAX",
    ): "packed by tensor2tensor's rule, as tests of transformer/packing.py hold",
    ("transformer", "input", "PyTorch"): "packed as Google's rows, where NVIDIA pads pairs of like length",
    (
        "transformer",
        "evaluation",
        "JAX",
    ): "tensor2tensor's search, borrowed from Google's TensorFlow rows of v0.6",
    (
        "transformer",
        "evaluation",
        "PyTorch",
    ): "tensor2tensor's search, borrowed from Google's TensorFlow rows",
    (
        "ssd",
        "input",
        "MXNet",
    ): "DALI's crops and colors, of which `dgx-1`'s PyTorch is the nearest transcription",
    ("resnet", "input", "TensorFlow"): "the LEGW paper has no code for `legw-*`",
    ("tsm_kinetics", "evaluation", "PyTorch"): "both take the mean of probabilities",
}

# (row, what a test measures) -> its effect: what the source does, what it changes; "{}" is the largest share.
EFFECTS = {
    (
        "maskrcnn/dgx-1",
        "second image",
    ): "NVIDIA (v0.7) compares all of a GPU's images with the first image's best overlaps, so {} of the other "
    "images' objects of 12 to 60 pixels have no anchor; our code matches each image by itself",
    (
        "maskrcnn/dgx-1",
        "ROIAlign",
    ): "NVIDIA's ROIAlign ends at the last pixel's corner, ours a pixel later, which changes pooled white noise by {} "
    "(root mean square, boxes of 30 to 60 pixels)",
    (
        "maskrcnn/dgx-1",
        "scaled ends",
    ): "NVIDIA scales a box's last pixel, we scale its edge: the overlap of a 32-pixel box changes by {}",
    (
        "gnmt/dgx-1",
        "coverage",
    ): "NVIDIA leaves the coverage's attention at its place in the beam, ours follows the "
    "hypothesis: {} of random sentences get another translation",
    (
        "resnet/v100-8",
        "evaluation",
    ): "JAX and Keras take plain means of both moments, which makes variances up to {} smaller for "
    "unrelated spans of 64 images",
    (
        "resnet/tpu-v3-2048",
        "evaluation",
    ): "Google's v0.6 code and MXNet evaluate each replica with its own averages: variances differ by up to {}",
}


def _rounded(value: float) -> float:
    """`value` with two digits, rounded up; rounding errors of float64 are 0."""
    if value < 1e-9:
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return float(f"{math.ceil(value / unit * (1 - 1e-9)) * unit:.1e}")


def hold(row: str, part: str, value: float) -> None:
    """Fails if `value`, the difference of a row's part, is over twice what the file says; makes the file if asked."""
    path = os.environ.get(WRITE)
    if path:
        with open(path, "a") as file:
            file.write(json.dumps([row, part, float(value)]) + "\n")
        return
    assert value <= max(2 * records()[row][part], 1e-9), f"{part} of {row} differs by {value}"


@functools.cache
def records() -> dict[str, dict[str, float]]:
    """{row: {part: its largest difference}}."""
    return json.loads(FILE.read_text())


def _settings(row: str, part: str) -> list[Any]:
    config, values = preset_of(row), []
    for field in SETTINGS[part]:
        value = functools.reduce(lambda at, name: getattr(at, name, None), field.split("."), config)
        if dataclasses.is_dataclass(value):
            value = {k: v for k, v in dataclasses.asdict(value).items() if k not in _ELSEWHERE}
        values.append(value)
    if (part, row[:7]) == ("evaluation", "resnet/"):
        values.append(config.ruleset)  # Google merges moments since v0.7.
    return [sources.rows()[row].code, row.partition("/")[0], values]


def stand_in(row: str, part: str) -> str | None:
    """The row of the same framework and settings whose part is measured."""
    same = (r for r in records() if part in records()[r] and _settings(r, part) == _settings(row, part))
    return next(same, None)


def _label(part: str, names: list[str]) -> str:
    of = {stand_in(name, part) for name in names}
    if None in of:
        return "read" if part != "targets" else ""
    value = max(records()[name][part] for name in of)
    return "0" if not value else f"{value:.1g}"


def table() -> str:
    """The page's table: what each framework's rows do, and their largest differences."""
    groups = collections.defaultdict(list)
    words = {"sum": "sum", "mean": "mean", "means": "mean of means"}
    for name, source in sources.rows().items():
        clips = "each replica's, to 5" if source.replica_clip(100.0) < 1 else ""
        clips = "the sum's, to 5" if source.clip(100.0) < 1 else clips or "none"
        scale = preset_of(name).loss_scale
        losses = words[source.combined] + (f", times {scale:g}" if scale != 1 else "")
        of = tuple(stand_in(name, part) for part in SETTINGS)
        groups[name.partition("/")[0], source.code, losses, clips, source.exchange, of].append(name)
    lines = [
        "| benchmark | framework | rows | losses | clipping | exchange | update | input | targets | evaluation | log |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for (benchmark, code, losses, clips, exchange, _), names in groups.items():
        update = " ".join(f"{max(records()[n][group] for n in names):.0e}" for group in GROUPS)
        parts = " | ".join(_label(part, names) for part in SETTINGS)
        logged = [n for n in names if n in test_headers.PUBLISHED]
        log = str(sum(len(test_headers._differences(n)) for n in logged)) if logged else "none"
        labels = [f"`{n.partition('/')[2]}`" for n in names]
        which = ", ".join(labels) if len(names) < 3 else f"{labels[0]} to {labels[-1]}, {len(names)}"
        lines.append(
            f"| {benchmark} | {code} | {which} | {losses} | {clips} | {exchange} | {update} | {parts} | {log} |"
        )
    lines += ["", "These larger differences of the update have a reason:\n"]
    reasons = collections.defaultdict(list)
    for name, of_groups in sorted(sources.DIFFERENT.items()):
        for group, (_, why) in of_groups.items():
            reasons[group, why].append(f"`{name}`")
    lines += [f"- {', '.join(names)}, {group}: {why}." for (group, why), names in reasons.items()]
    lines += ["", "Our steps keep these differences; each line has the effect:\n"]
    lines += [
        f"- {text.format(f'{100 * records()[row][part]:.2g} %')}." for (row, part), text in EFFECTS.items()
    ]
    lines += ["", "No test measures these parts; we compared them by reading the code:\n"]
    read = collections.defaultdict(list)
    for (benchmark, part, code), why in UNMEASURED.items():
        read[benchmark, part, why].append(code)
    lines += [f"- {b}, {part}, {', '.join(codes)}: {why}." for (b, part, why), codes in read.items()]
    return "\n".join(lines) + "\n"


def keep(lines: list[str]) -> None:
    """Writes the file and the page from the lines that `hold` wrote."""
    by_row: dict[str, dict[str, float]] = {}
    for row, part, value in map(json.loads, lines):
        of_row = by_row.setdefault(row, {})
        of_row[part] = max(of_row.get(part, 0.0), _rounded(value))
    rows = (f" {json.dumps(row)}: {json.dumps(parts)}" for row, parts in sorted(by_row.items()))
    FILE.write_text("{\n" + ",\n".join(rows) + "\n}\n")
    records.cache_clear()
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(before + BEGIN + table() + END + rest.partition(END)[2])


def main() -> int:
    """Runs the tests; returns pytest's status."""
    measured = FILE.with_suffix(".tmp")
    os.environ[WRITE] = str(measured)
    status = pytest.main(["-n0", "-q", *(str(pathlib.Path(__file__).parent / name) for name in TESTS)])
    keep(measured.read_text().splitlines())
    measured.unlink()
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
