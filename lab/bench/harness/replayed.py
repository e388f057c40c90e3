"""An export's program, compiled by jax for the local device: runs its steps, checks and times them.

Imports numpy; imports jax only where needed.
"""

import time
from pathlib import Path
from typing import Any

import numpy as np

from common.distributed import pjrt_program
from common.export import rules


class Replay:
    """A program of an export, which `compile` compiles for the devices of its replicas, with its buffers there.

    Attributes:
      buffers: the arguments, as jax arrays.
      last_outputs: outputs of the last evaluation in `check`, by name: sums, and the joined arrays of all replicas.
    """

    def __init__(self, folder: Path, manifest: dict, program: dict):
        self.manifest, self.program = manifest, program
        self._folder, self._stored = folder, np.load(folder / "arrays.npz")
        described = [*manifest["state"], *manifest["constants"], *program["inputs"]]
        self._about = {a["name"]: a for a in described}
        names = [a["name"] for a in program["arguments"]]
        updates = [r["updates"] for r in program["results"]]
        self._updates = [(i, names.index(name)) for i, name in enumerate(updates) if name]
        self._count = manifest["num_replicas"]
        self.buffers: list[Any] = []
        self.last_outputs: dict[str, np.ndarray] = {}

    def compile(self) -> None:
        """Compiles the program for the first devices, or takes it from jax's cache."""
        import jax

        program = self.program
        self._placement = pjrt_program.Placement(jax.devices()[: self._count])
        kinds = {part: [(a["shape"], a["dtype"]) for a in program[part]] for part in ("arguments", "results")}
        donated = {argument: result for result, argument in self._updates}
        artifact = (self._folder / program["partitioned_file" if self._count > 1 else "file"]).read_bytes()
        began = time.perf_counter()
        self.compiled = pjrt_program.OnDevices(artifact, self._placement, **kinds, donated=donated)
        self.compile_seconds = time.perf_counter() - began

    def reset(self) -> None:
        """Puts the arguments' first values on the device, as made by their rules."""
        self.buffers.clear()
        for argument in self.program["arguments"]:
            values = [self._first(argument["name"], replica) for replica in range(self._count)]
            self.buffers.append(self._placement.place(values))

    def _first(self, name: str, replica: int = 0) -> np.ndarray:
        about = self._about[name]
        group = replica // self.manifest["partitions"]
        return rules.make(about["rule"], about["shape"], about["dtype"], self._stored, replica, group)

    def _value(self, name: str, buffer: Any) -> np.ndarray:
        """Returns the state `name` from the devices: [N, ...] if each of several replicas has its own."""
        values = pjrt_program.parts(buffer)
        return np.stack(values) if self._count > 1 and self._about[name]["per_replica"] else values[0]

    def step(self) -> list[Any]:
        """Runs one call; updated values replace the old ones in the same memory."""
        results = self.compiled(*self.buffers)
        for result, argument in self._updates:
            self.buffers[argument] = results[result]
        return results

    def check(self) -> dict[str, Any]:
        """Compares the first steps, or the evaluation, from the first values on, with the reference's."""
        self.reset()
        expected = self.program["reference"] or {}
        if self.program["kind"] == "eval":
            results = zip(self.program["results"], self.step())
            outputs = {r["name"]: self._output(r["name"], x) for r, x in results if not r["updates"]}
            self.last_outputs = outputs
            report: dict[str, Any] = {
                "outputs": {name: rules.digest(x, rules.key_of(name)) for name, x in outputs.items()}
            }
            if expected:
                errors = {n: rules.distance(report["outputs"][n], d) for n, d in expected["outputs"].items()}
                report["output_errors"] = errors
            return report
        losses, state = [], {}
        for i in range(max(3, len(expected.get("losses", ())))):
            losses.append(float(sum(pjrt_program.parts(self.step()[0]))))
            if i == 0:
                state = self._state_errors(expected["state"]) if expected else {}
                state["unequal_copies"] = self._unequal()
        report = {"losses": losses, **state}
        if expected:
            report["expected_losses"] = expected["losses"]
            report["loss_errors"] = [abs(a - b) / abs(b) for a, b in zip(losses, expected["losses"])]
        return report

    def _output(self, name: str, result: Any) -> np.ndarray:
        """Returns an evaluation's output over all replicas: the sum, or the joined arrays."""
        values = [x.astype(np.float64) for x in pjrt_program.parts(result)]
        return np.sum(values, 0) if name.startswith("sums/") else np.concatenate(values)

    def _unequal(self) -> list[str]:
        """Returns the state that should be equal on all replicas, according to the manifest, but differs."""
        state = {a["name"] for a in self.manifest["state"] if not a["per_replica"]}
        unequal = []
        for argument, buffer in zip(self.program["arguments"], self.buffers):
            if argument["name"] in state and self._count > 1:
                first, *others = pjrt_program.parts(buffer)
                if not all(first.tobytes() == other.tobytes() for other in others):
                    unequal.append(argument["name"])
        return unequal

    def _state_errors(self, expected: dict) -> dict[str, Any]:
        """Returns the largest error of a weight, slot or statistic after the first step, and of its change."""
        worst = {"after": (0.0, ""), "change": (0.0, "")}
        for argument, buffer in zip(self.program["arguments"], self.buffers):
            name = argument["name"]
            if name not in expected:
                continue
            key, after = rules.key_of(name), self._value(name, buffer).astype(np.float64)
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
        """Returns the state from the devices: [N, ...] if each of several replicas has its own."""
        names = [a["name"] for a in self.program["arguments"]]
        state = {a["name"] for a in self.manifest["state"]}
        return {n: self._value(n, b) for n, b in zip(names, self.buffers) if n in state}

    def time(self, warmup: int, rounds: int, steps: int) -> list[float]:
        """Returns the seconds of a step, one figure per round.

        It issues a round's steps without waiting and stops the clock when the last step's results are ready. With
        several CPU devices it waits for each step: if programs overtake one another there, their collectives deadlock.
        """
        waits = self._count > 1 and self._placement.devices[0].platform == "cpu"
        for _ in range(warmup):
            self.step()[0].block_until_ready()
        seconds = []
        for _ in range(rounds):
            began = time.perf_counter()
            for _ in range(steps):
                results = self.step()
                if waits:
                    results[0].block_until_ready()
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
