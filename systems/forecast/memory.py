"""Whether a benchmark fits into the memory of a machine, and how its accelerators divide the work.

data/benchmarks.json has, for each benchmark, what a run must hold at least: parameters and bytes of state for each (16
for Adam in mixed precision: Rajbhandari et al., ZeRO, 2020, section 3.1; 2 for the frozen weights of a fine-tuning),
embedding tables, the activations of one example (of language models with recomputation: the layers' inputs alone; of
this project's networks as compiled), and the working set of a layer and the loss. `source` names where it comes from,
`estimated` the fields that follow from the layers' sizes alone. `data` has a source and a basis of estimates too.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from systems.forecast import accelerators, scores

_PATH = Path(__file__).parent / "data/benchmarks.json"
_FREE = 0.92  # Share of an accelerator's memory that a program gets.
_COPIES = (
    4  # Bytes of a parameter's 16-bit weight and gradient, which are not sharded over replicas at first.
)


@functools.cache
def facts() -> dict[str, dict[str, Any]]:
    """data/benchmarks.json."""
    return json.loads(_PATH.read_text(encoding="utf-8"))


@dataclasses.dataclass(frozen=True)
class Fit:
    """Bytes that a run needs at least, and those that the accelerators have; `why` says it in words."""

    needed: float
    available: float
    why: str

    @property
    def fits(self) -> bool:
        return self.needed <= self.available


def fit(benchmark: str, chip: Mapping[str, Any], many: int, batch: float | None = None) -> Fit | None:
    """Whether a benchmark fits; None if its size or the accelerator's memory is not known.

    With a batch, of this project's networks, the activations of a whole batch must fit: they do not accumulate.
    """
    row = facts().get(benchmark, {})
    if not {"parameters", "tables"} & {*row} or not chip.get("memory"):
        return None
    state = row.get("parameters", 0) * row.get("state", 0) + row.get("tables", 0)
    example, shared = row.get("example", 0.0), "tensor" in row
    # Networks that cannot be divided hold a copy on each accelerator.
    copies = 1 if shared or "tables" in row else many
    acts = example * (batch if batch and not shared else copies)
    needed, available = copies * state + acts + row.get("working", 0), chip["memory"] * many
    parts = (
        [f"{row['parameters'] / 1e9:.3g} billion parameters at {row['state']} bytes"]
        if "parameters" in row
        else []
    )
    parts += [f"embedding tables of {row['tables'] / 1e9:.1f} GB"] if "tables" in row else []
    more = acts + row.get("working", 0)
    parts += [f"activations of {_gb(more)}{' (estimated)' if row.get('estimated') else ''}"] if more else []
    which = "at least" if shared or "tables" in row else "about"
    text = f"{', '.join(parts)} need {which} {_gb(needed)}; {many} x {chip['name']} have {_gb(available)}"
    if batch and example and not shared and needed > available:
        most = max(0, int((available - copies * state) / example))
        text += f"; a batch of at most {most:,} fits without accumulation"
    return Fit(needed, available, text + (_beside(benchmark, row, available) if needed <= available else ""))


def _beside(benchmark: str, row: Mapping[str, Any], available: float) -> str:
    """What was measured, and a warning if every published system of the benchmark has more memory."""
    table = accelerators.table()
    sizes = [
        (table[one.chip]["memory"] * one.accelerators, f"{one.accelerators} x {one.chip}")
        for one in scores.rows()
        if one.benchmark == benchmark and table[one.chip].get("memory")
    ]
    text = ""
    if measurement := row.get("measured"):
        place = f"{measurement['many']} {measurement['on']} ({measurement['source']})"
        text += f"; measured: {_gb(measurement['bytes'])} on {place}"
    if (sizes and available < min(sizes)[0] / 2) or (measurement and available < measurement["bytes"]):
        text += "; WARNING: it may run out of memory"
        text += f": the smallest published system has {_gb(min(sizes)[0])} ({min(sizes)[1]})" if sizes else ""
    return text


def _gb(size: float) -> str:
    return f"{size / 1e9:,.0f} GB" if size >= 10e9 else f"{size / 1e9:.2g} GB"


@dataclasses.dataclass(frozen=True)
class Division:
    """How a step is divided: numbers of parts by kind, examples of a micro-batch, micro-batches of a step, and the
    bytes that an accelerator holds. `sharded`: weights and gradients are divided over the data-parallel replicas too.
    """

    data: int
    tensor: int
    pipeline: int
    context: int
    expert: int
    micro: int
    accumulation: int
    sharded: bool
    bytes_each: float

    def words(self) -> str:
        """The division in words."""
        parts = [f"{name} {n}" for name, n in dataclasses.asdict(self).items() if name in _KINDS and n > 1]
        text = ", ".join(parts) or "one accelerator"
        steps = f", accumulation {self.accumulation}" if self.accumulation > 1 else ""
        shards = ", weights sharded" if self.sharded else ""
        return f"{text}, micro-batch {self.micro}{steps}{shards}: {self.bytes_each / 1e9:.0f} GB each"


_KINDS = ("data", "tensor", "pipeline", "context", "expert")


def divide(benchmark: str, chip: Mapping[str, Any], many: int, per_node: int, batch: int) -> Division | None:
    """The division with the fewest model-parallel parts that fits and divides the batch; None if none does, or the
    benchmark's activations or the accelerator's memory are not known.
    """
    row = facts().get(benchmark, {})
    if "parameters" not in row or "example" not in row or not chip.get("memory"):
        return None
    twos, candidates = [1 << i for i in range(15)], []
    within = [n for n in twos if n <= min(row.get("tensor", 1), per_node)]
    deep = [n for n in twos if n <= 16] if "tensor" in row else [1]
    for tensor, pipeline, context in itertools.product(within, deep, deep[:4]):
        parts = tensor * pipeline * context
        if many % parts or batch % (many // parts):
            continue
        data = many // parts
        for micro, sharded in itertools.product(
            (4, 2, 1) if "tensor" in row else (batch // data,), (False, True)
        ):
            if batch % (data * micro):
                continue
            bytes_each = _each(row, (data, tensor, pipeline, context), micro, sharded)
            if bytes_each <= _FREE * chip["memory"]:
                expert = min(row.get("experts", 1), data) if row.get("experts") else 1
                numbers = (data, tensor, pipeline, context, expert, micro, batch // data // micro)
                candidates.append(((parts, sharded, -micro), Division(*numbers, sharded, bytes_each)))
    return min(candidates, key=lambda one: one[0])[1] if candidates else None


def _each(row: Mapping[str, Any], parts: tuple[int, ...], micro: int, sharded: bool) -> float:
    """Bytes that an accelerator holds."""
    data, tensor, pipeline, context = parts
    copies = min(_COPIES, row["state"])
    weights = row["parameters"] / (tensor * pipeline)
    state = weights * (row["state"] - copies) / (data * context) + weights * copies / (
        data * context if sharded else 1
    )
    return state + (micro * row["example"] + row.get("working", 0)) / (tensor * context)
