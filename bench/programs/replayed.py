"""A program of an export, compiled by jax for the device at hand: its steps, their errors and their seconds.

Imports numpy; jax where it is needed.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from common.export import rules


class Replay:
    """A program of an export, compiled for one device, and its buffers there."""

    def __init__(self, folder: Path, manifest: dict, program: dict):
        import jax

        self.manifest, self.program = manifest, program
        self._stored = np.load(folder / "arrays.npz")
        described = [*manifest["state"], *manifest["constants"], *program["inputs"]]
        self._about = {a["name"]: a for a in described}
        arguments = [jax.ShapeDtypeStruct(a["shape"], a["dtype"]) for a in program["arguments"]]
        results = [jax.ShapeDtypeStruct(r["shape"], r["dtype"]) for r in program["results"]]
        names = [a["name"] for a in program["arguments"]]
        updates = [r["updates"] for r in program["results"]]
        donated = tuple(i for i, name in enumerate(names) if name in updates)
        call = loaded((folder / program["file"]).read_bytes(), arguments, results)
        began = time.perf_counter()
        self.compiled = jax.jit(call, donate_argnums=donated).lower(*arguments).compile()
        self.compile_seconds = time.perf_counter() - began
        self._written = [(i, names.index(name)) for i, name in enumerate(updates) if name]
        self.buffers: list[Any] = []
        self.reset()

    def reset(self) -> None:
        """Puts the arguments' first values onto the device, made by their rules."""
        import jax

        self.buffers.clear()
        self.buffers += [jax.device_put(self._first(a["name"])) for a in self.program["arguments"]]

    def _first(self, name: str) -> np.ndarray:
        about = self._about[name]
        return rules.make(about["rule"], about["shape"], about["dtype"], self._stored)

    def step(self) -> list[Any]:
        """One call; what it updates is put where it was, in the same memory."""
        results = self.compiled(*self.buffers)
        for result, argument in self._written:
            self.buffers[argument] = results[result]
        return results

    def check(self) -> dict[str, Any]:
        """The first steps, or the evaluation, beside the reference's."""
        expected = self.program["reference"] or {}
        if self.program["kind"] == "eval":
            results = zip(self.program["results"], self.step())
            found = {r["name"]: np.asarray(x, np.float64) for r, x in results if not r["updates"]}
            report: dict[str, Any] = {
                "outputs": {name: rules.digest(x, rules.key_of(name)) for name, x in found.items()}
            }
            if expected:
                errors = {n: rules.distance(report["outputs"][n], d) for n, d in expected["outputs"].items()}
                report["output_errors"] = errors
            return report
        losses, state = [], {}
        for i in range(max(3, len(expected.get("losses", ())))):
            losses.append(float(self.step()[0]))
            if i == 0 and expected:
                state = self._state_errors(expected["state"])
        report = {"losses": losses, **state}
        if expected:
            report["expected_losses"] = expected["losses"]
            report["loss_errors"] = [abs(a - b) / abs(b) for a, b in zip(losses, expected["losses"])]
        return report

    def _state_errors(self, expected: dict) -> dict[str, Any]:
        """The largest error of a weight, slot or statistic after the first step, and of its change."""
        worst = {"after": (0.0, ""), "change": (0.0, "")}
        for argument, buffer in zip(self.program["arguments"], self.buffers):
            name = argument["name"]
            if name not in expected:
                continue
            key, after = rules.key_of(name), np.asarray(buffer, np.float64)
            arrays = {"after": after, "change": after - self._first(name)}
            for kind, array in arrays.items():
                error = rules.distance(rules.digest(array, key), expected[name][kind])
                if not error <= worst[kind][0]:
                    worst[kind] = error, name
        return {
            "state_error": {"relative": worst["after"][0], "of": worst["after"][1]},
            "change_error": {"relative": worst["change"][0], "of": worst["change"][1]},
        }

    def values(self) -> dict[str, np.ndarray]:
        """The state on the device."""
        names = [a["name"] for a in self.program["arguments"]]
        state = {a["name"] for a in self.manifest["state"]}
        return {n: np.asarray(b) for n, b in zip(names, self.buffers) if n in state}

    def time(self, warmup: int, rounds: int, steps: int) -> list[float]:
        """Seconds of a step, one figure a round. The steps of a round are issued without waiting; the clock stops when
        the last one's results are there.
        """
        for _ in range(warmup):
            results = self.step()
        results[0].block_until_ready()
        seconds = []
        for _ in range(rounds):
            began = time.perf_counter()
            for _ in range(steps):
                results = self.step()
            for result in results:
                result.block_until_ready()
            seconds.append((time.perf_counter() - began) / steps)
        return seconds

    def profile(self, folder: str, steps: int) -> None:
        """Writes a trace of some steps, for TensorBoard or Perfetto."""
        import jax

        with jax.profiler.trace(folder):
            for _ in range(steps):
                results = self.step()
            results[0].block_until_ready()


def loaded(artifact: bytes, arguments: list[Any], results: list[Any]) -> Callable:
    """A jax function that is the artifact's `main`.

    The public way into jax for StableHLO that another framework wrote: an export of an empty function of the same
    signature whose program is replaced.
    """
    import jax
    import jax.export
    import jax.numpy as jnp

    def empty(*_: Any) -> list[Any]:
        return [jnp.zeros(r.shape, r.dtype) for r in results]

    platforms = [jax.export.default_export_platform()]
    exported = jax.export.export(jax.jit(empty, keep_unused=True), platforms=platforms)(*arguments)
    return dataclasses.replace(exported, mlir_module_serialized=artifact).call
