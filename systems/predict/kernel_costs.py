"""Loads a network's costs: kernels with sizes linear in the replica's batch, and the sizes of the weights.

lab/bench/costs.py extracts costs.json from the HLO of the traced training step. For other networks, `formulas` has
hand-counted costs; `source` says so.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path
from typing import Any

import numpy as np

from common.errors import UserError
from systems.predict import formulas

PATH = Path(__file__).parent / "costs.json"
# Kernels over image rows, which partitions share. The others run on the first worker (pods paper, section 3).
SHARED = ("convolution", "product", "elementwise", "norm", "pool")


@dataclasses.dataclass(frozen=True)
class Kernels:
    """A pass's kernels. Sizes are arrays [kernels, 2] that mean a + b * batch; each kernel occurs `count` times.

    Attributes:
      kind: "convolution", "product", "elementwise", "norm", "reduction", "pool", "gather", "other".
      groups, m, n, k: `groups` products [m, k] x [k, n]; 0 if a kernel only moves bytes.
      moved, wide: bytes read and written with bf16 between layers; `wide` of them use four-byte values in any
        precision.
    """

    kind: np.ndarray
    count: np.ndarray
    groups: np.ndarray
    m: np.ndarray
    n: np.ndarray
    k: np.ndarray
    moved: np.ndarray
    wide: np.ndarray

    @classmethod
    def of(cls, rows: list[list[Any]]) -> Kernels:
        """From rows [kind, count, [a, b] of groups, m, n, k, bytes, wide]."""
        columns = [np.array([row[i] for row in rows], dtype=np.float64).reshape(-1, 2) for i in range(2, 8)]
        kind = np.array([row[0] for row in rows])
        return cls(kind, np.array([row[1] for row in rows], dtype=np.float64), *columns)

    @property
    def flops_per_example(self) -> float:
        """FLOPs that each example adds (a multiply-add is two)."""
        return self.flops(1e6) / 1e6

    def flops(self, batch: float) -> float:
        """FLOPs of the pass over `batch` examples."""
        g, m, n, k = (x[:, 0] + x[:, 1] * batch for x in (self.groups, self.m, self.n, self.k))
        return float(np.sum(self.count * 2 * g * m * n * k))

    def bytes(self, batch: float, itemsize: int = 2) -> float:
        """Bytes that the pass reads and writes for `batch` examples, with `itemsize`-byte values between layers."""
        return float(np.sum(self.count * _moved(self, batch, itemsize)))


def _moved(kernels: Kernels, batch: float, itemsize: int) -> np.ndarray:
    moved, wide = (x[:, 0] + x[:, 1] * batch for x in (kernels.moved, kernels.wide))
    return wide + (moved - wide) * itemsize / 2


@dataclasses.dataclass(frozen=True)
class Network:
    """Attributes:
    parameters, tensors: number of trained parameters and of their tensors.
    norm_layers, norm_channels: number of batch-norm layers and of their channels.
    decode: one step of evaluation's beam search for one hypothesis, or None.
    source: where the costs come from.
    """

    name: str
    parameters: int
    tensors: int
    norm_layers: int
    norm_channels: int
    train: Kernels
    forward: Kernels
    decode: Kernels | None
    source: str

    @property
    def three_dimensional(self) -> bool:
        """Whether its convolutions extend over time, and so run as 3-D kernels."""
        return self.name.startswith("i3d")


@functools.cache
def load(name: str) -> Network:
    """Loads a network's costs by name.

    Raises:
      UserError: the network has no costs.
    """
    if name in _traced():
        costs = _traced()[name]
    elif name in formulas.NETWORKS:
        costs = formulas.NETWORKS[name]()
    else:
        raise UserError(
            f"network {name!r}: no costs are known; add it to lab/bench/costs.py; known: {', '.join(known())}"
        )
    decode = formulas.DECODERS.get(name)
    return Network(
        name=name,
        parameters=costs["parameters"],
        tensors=costs["tensors"],
        norm_layers=costs["norm_layers"],
        norm_channels=costs["norm_channels"],
        train=Kernels.of(costs["train"]),
        forward=Kernels.of(costs["forward"]),
        decode=Kernels.of(decode()) if decode else None,
        source=costs["source"],
    )


def known() -> list[str]:
    """Returns the networks that have costs."""
    return sorted({*_traced(), *formulas.NETWORKS})


@functools.cache
def _traced() -> dict[str, dict[str, Any]]:
    return json.loads(PATH.read_text(encoding="utf-8"))
