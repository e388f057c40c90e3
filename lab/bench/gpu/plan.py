"""Plans the rows of a card's measurement in stages, the most important first."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from lab.bench.gpu.child import Row
from lab.bench.gpu.prepare import PHOTOGRAPHS, SMALL
from lab.bench.harness.figures import EXACT_FLAGS

# Time limits per phase of a row, in seconds: several times the times on an H200 with 16 cores (lab/bench/results/gpu).
_COMPILE, _CHECK, _STEP, _TORCH, _TORCH_COMPILED, _TRAIN = 150, 120, 90, 90, 120, 240
# How many processes prepare while another one measures.
_AHEAD = 3
_EAGER = ("resnet", "transformer", "ssd", "gnmt", "tsm_kinetics")
# As in the exports of prepare.py: layers, width, hidden, heads, vocabulary, dropout rate.
FLAX = {
    "resnet": ("jax_resnet", {"batch": 256, "optimizer": "lars"}),
    "transformer": (
        "jax_transformer",
        {"batch": 32, "length": 256, "sizes": [6, 1024, 4096, 16, 33708, 0.1], "generator": "rbg"},
    ),
}
# The ResNet-50 run whose step is exported.
_LOOP = (
    "--system=tpu-v3-32", "--config.hardware=local", "--config.ruleset=0.7.0", "--config.division=open",
    "--config.num_replicas=1", "--config.global_batch_size=256", "--config.eval_batch_size=256",
    "--config.batch_norm_span=256",
)  # fmt: skip


class Stage(NamedTuple):
    """Rows that run together, `at_a_time` at once."""

    title: str
    rows: list[Row]
    at_a_time: int


class Plan:
    """Makes the rows for the exports of a folder."""

    def __init__(self, exports: Path, scratch: Path, quick: bool):
        """`quick`: a few steps per round, to check that everything runs."""
        self._exports, self._scratch = exports, scratch
        self._common = {"lock": str(scratch / "lock"), "cache": str(scratch / "cache")}
        self._steps = {"steps": 2, "rounds": 2, "seconds_of_round": 0.2} if quick else {}
        self._cores = os.cpu_count() or 1
        self._quick = quick
        self.full, self.small = (self._export_names(kind) for kind in ("full", "small"))

    def _export_names(self, kind: str) -> list[str]:
        """Returns the names of a kind's exports; those that take longest to compile come first."""
        names = sorted(path.parent.name for path in (self._exports / kind).glob("*/manifest.json"))
        first = ("transformer", "maskrcnn", "gnmt", "ssd", "resnet", "tsm_kinetics")
        return sorted(names, key=lambda name: first.index(name) if name in first else len(first))

    def _row(self, name: str, job: str, seconds: float, **more: Any) -> Row:
        settings = {key: more.pop(key) for key in ("flags", "environment") if key in more}
        return Row(name, {"job": job, **self._common, **more}, seconds, **settings)

    def _of_export(self, name: str, job: str, kind: str, network: str, seconds: float, **more: Any) -> Row:
        return self._row(name, job, seconds, export=str(self._exports / kind / network), **more)

    def ceilings(self) -> Stage:
        """Measures the card's limits."""
        return Stage("ceilings of the card", [self._row("ceilings", "ceilings", _STEP)], 1)

    def llama(self) -> Stage:
        """Llama 3.1 8B: fused attention beside plain, then ten steps of the full network."""
        exports = {name: str(self._exports / "llama" / name) for name in self._export_names("llama")}
        settings: dict[str, Any] = {"environment": {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.98"}}
        rows = []
        if {"fused", "plain"} <= exports.keys():
            two = {"export": exports["fused"], "other": exports["plain"]}
            rows.append(self._row("llama/attention", "attention", _CHECK, **two, **settings))
        if "full" in exports:
            rows.append(
                self._row(
                    "llama/step", "full_step", _COMPILE, export=exports["full"], **self._steps, **settings
                )
            )
        return Stage("Llama 3.1 8B", rows, 1)

    def compiles_and_checks(self) -> Stage:
        """Compiles programs into the cache, and checks equality in float64: neither needs a quiet card."""
        rows = [self._of_export(f"compile/{n}", "compile", "full", n, _COMPILE) for n in self.full]
        exact = EXACT_FLAGS["fp64"]
        rows += [self._of_export(f"check/{n}", "check", "small", n, _CHECK, flags=exact) for n in self.small]
        return Stage("compiling, and equality in float64", rows, self._cores)

    def steps(self) -> Stage:
        """Full-size steps. Those that compile fastest come first, so that early rows exist if the time runs out."""
        names = reversed(self.full)
        rows = [self._of_export(f"step/{n}", "step", "full", n, _STEP, **self._steps) for n in names]
        return Stage("steps", rows, _AHEAD)

    def eager(self) -> Stage:
        """PyTorch without its compiler."""
        names = [n for n in _EAGER if n in self.full]
        rows = [self._of_export(f"torch/{n}", "torch", "full", n, _TORCH, **self._steps) for n in names]
        return Stage("PyTorch, eager", rows, 2)

    def compiled_peers(self) -> Iterator[Stage]:
        """Flax and torch.compile: while one is measured, others compile."""
        inductor = {"TORCHINDUCTOR_CACHE_DIR": str(self._scratch / "inductor")}
        names = [n for n in _EAGER if n in self.full]
        flax = {} if self._quick else {n: FLAX[n] for n in FLAX if n in self.full}
        rows = [
            self._row(f"flax/{n}", "flax", _COMPILE, module=module, keywords=keywords, **self._steps)
            for n, (module, keywords) in flax.items()
        ]
        yield Stage("flax", rows, _AHEAD)
        compiled = [
            self._of_export(
                *(f"torch_compiled/{n}", "torch_compiled", "full", n, _TORCH_COMPILED),
                **(self._steps | {"environment": inductor}),
            )
            for n in names
        ]
        # Each keeps its network on the card while it waits.
        yield Stage("PyTorch, compiled", compiled, 3)

    def training(self) -> Iterator[Stage]:
        """Whole runs, which need TensorFlow: ResNet-50 on photographs if there are any, then tiny presets."""
        more: Mapping[str, Any] = {
            "scratch": str(self._scratch),
            "environment": {"JAX_COMPILATION_CACHE_DIR": str(self._scratch / "trained")},
        }
        # A minute at 7,000 images/s.
        sizes: dict[str, Any] = {"steps": 800, "images": PHOTOGRAPHS, "batch": 256}
        arguments = list(_LOOP)
        if self._quick:
            sizes = {"steps": 2, "images": 64, "batch": 8}
            arguments += ["--config.width=8", "--config.image_size=32", "--config.batch_norm_span=8"]
            arguments += ["--config.global_batch_size=8", "--config.eval_batch_size=8"]
        data, loops = self._exports / "photographs", []
        for name, cache in (("photographs", "encoded"), ("decoded", "decoded")) if data.is_dir() else ():
            loop = {"arguments": [*arguments, f"--config.data.cache={cache}"], "data": str(data), **sizes}
            loops.append(self._row(f"loop/{name}", "loop", _TRAIN, **loop, **more))
        yield Stage("ResNet-50 fed with photographs", loops, 1)
        rows = [
            self._row(f"train/{name}", "train", _TRAIN, benchmark=name, row=name, arguments=[], **more)
            for name in SMALL
        ]
        yield Stage("whole runs, beside each other", rows, self._cores)
