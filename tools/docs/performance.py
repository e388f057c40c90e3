"""Writes tables from lab/bench/results/*.json into the documents: `python -m tools.docs.performance`.

A table goes between `<!-- table: NAME -->` and `<!-- end of table -->`; a test compares every page with the files.
"""

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from common.files import markdown_table
from tools.docs import gpu, measurements, tables
from tools.docs.measurements import ROOT, Comparison

PAGES = (
    "README.md",
    "docs/performance.md",
    "docs/reliability.md",
    "docs/gpu.md",
    "docs/scaling.md",
    "llama31_8b/README.md",
)
_TABLE = re.compile(r"(<!-- table: (\S+) -->\n)(?:(?!<!-- table: ).)*?(<!-- end of table -->)", re.DOTALL)
# README.md's rows: {case: its name in README.md}.
SHORT = {
    "ResNet-50, 224 pixels, batch 16, fp32": "ResNet-50 training step",
    "Transformer big, 4 x 64 tokens, fp32": "Transformer big training step",
    "GNMT, 8 x 30 tokens, fp32": "GNMT training step",
    "SSD-300, 8 images, fp32": "SSD training step",
    "Mask R-CNN, one image of 832x1344, fp32": "Mask R-CNN training step",
    "MNIST LSTM, batch 128, fp32": "MNIST LSTM training step",
    "MNIST perceptron, 4 layers, batch 100, fp32": "MNIST perceptron, an epoch",
}
OTHERS = ("PyTorch", "JAX")  # Peers without TensorFlow.


def short() -> str:
    """Makes README.md's table: the fastest peers of a few cases."""
    steps = [*measurements.steps("training"), *measurements.steps("small")]
    rows = []
    for case, name in SHORT.items():
        peers = [row for row in steps if row.case == case]
        others = [row for row in peers if row.peer in OTHERS]
        tensorflow = [row for row in peers if row not in others]
        rows.append((name, peers[0].ours, _fastest(tensorflow), _fastest(others)))
    return markdown_table(("what", "ours", "fastest TensorFlow peer", "fastest other peer"), rows)


def _fastest(rows: Sequence[Comparison]) -> str:
    """The peer with the smallest ratio to this project's time."""
    if not rows:
        return ""
    row = min(rows, key=lambda row: row.ratio)
    return f"{row.ratio:.2f}x {row.peer.split(',')[0]}"


def by_case(rows: Iterable[Comparison]) -> str:
    """Makes the table with one row for each case: ours, and every peer's ratio."""
    cases: dict[tuple[str, str], list[Comparison]] = {}
    for row in rows:
        cases.setdefault((row.case, row.ours), []).append(row)
    cells = [
        (case, ours, "; ".join(f"{row.ratio:.2f} {row.peer}" for row in peers))
        for (case, ours), peers in cases.items()
    ]
    return markdown_table(("what", "ours", "peer's time over ours"), cells)


def missed() -> str:
    """Makes the table of every goal that this project misses."""
    peers = [
        (f"{row.case}, {row.peer}", f"{row.ratio:.2f}", f"at least {row.goal_text}")
        for row in measurements.comparisons()
        if row.verdict == "missed"
    ]
    bounds = [(row.case, row.measured, row.goal) for row in measurements.limits() if not row.is_met]
    return markdown_table(("what", "measured", "goal"), peers + bounds)


TABLES: dict[str, Callable[[], str]] = {
    "short": short,
    "training": lambda: by_case(measurements.steps("training")),
    "small": lambda: by_case(measurements.steps("small")),
    "missed": missed,
    "gpu-steps": lambda: markdown_table(*gpu.steps()),
    "llama-compiled": lambda: markdown_table(*gpu.llama()),
    "llama-nodes": lambda: markdown_table(*gpu.llama_nodes()),
    "llama-ptb": lambda: markdown_table(*tables.llama_ptb()),
    "faults": lambda: markdown_table(*tables.faults()),
    "goodput": lambda: markdown_table(*tables.goodput()),
    "soak": lambda: markdown_table(*tables.soak()),
    "long-runs": lambda: markdown_table(*tables.long_runs()),
}


def fill(text: str) -> str:
    """Returns a page's text with its tables replaced by current ones.

    Raises KeyError if the page names a table that TABLES lacks.
    """
    return _TABLE.sub(lambda match: f"{match[1]}\n{TABLES[match[2]]()}\n\n{match[3]}", text)


def names(text: str) -> list[str]:
    """Returns the names of the tables in a page."""
    return [match[2] for match in _TABLE.finditer(text)]


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Returns 0, or 1 if --check finds a page that differs from the files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; say which pages are out of date")
    options = parser.parse_args(arguments)
    status = 0
    for page in PAGES:
        path = root / page
        text = path.read_text(encoding="utf-8")
        new = fill(text)
        if new == text:
            continue
        if options.check:
            print(f"error: {page}: its tables differ from lab/bench/results; run make docs", file=sys.stderr)
            status = 1
        else:
            path.write_text(new, encoding="utf-8")
            print(f"wrote    {page}")
    return status


if __name__ == "__main__":
    sys.exit(main())
