"""Flips bits in the weights, slots, gradients, batches and sums of one replica, and counts what the guard sees.

A trial trains MNIST's tiny network for 40 steps on mirrored replicas of this machine, and compares every 10 steps. The
overheads are the processor times of a comparison, of a checkpoint and of a second's heartbeats, beside that of 1,000
steps. A result file that exists is continued.

    python -m lab.bench.guard [--trials N] [--replicas N] [--quick]
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import tempfile
import time
from collections import Counter
from typing import Any
from unittest import mock

import numpy as np
import tensorflow as tf

from common.distributed import heartbeat
from common.train import checkpoint
from common.train.guard import Guard
from lab.bench.harness import scripts
from lab.bench.harness.scripts import head, write

KINDS = ("weights", "slots", "sums", "gradients", "batches", "nothing")
STEPS, EVERY = 40, 10
GUARDS = ("guard", "checkpoints", "watchdog")


class Injector:
    """A loop on several replicas, and one armed fault: a bit of an element of a tensor of a replica at a step."""

    def __init__(self, replicas: int):
        from common.distributed import replicas as backends
        from common.distributed import weight_update
        from common.train.programs import Programs
        from mnist.presets import PRESETS
        from mnist.task import Task

        config = dataclasses.replace(
            PRESETS["cpu-tiny"], replicas="mirrored", num_replicas=replicas, lstm_units=8
        )
        copies = backends.make(config)  # First, since it divides the processor into devices.
        self._fault = [tf.Variable(-1, dtype=tf.int64, trainable=False) for _ in range(5)]
        injector = self

        class Faulty(Task):
            def loss(self, model: Any, batch: Any) -> Any:
                name = max(batch, key=lambda n: int(batch[n].dtype.is_floating))
                return super().loss(model, {**batch, name: injector._flipped("batches", 0, batch[name])})

        self.loop = Programs(Faulty(config, None), copies)
        self.loop.train_input = self._batches
        total, update = weight_update.gradient_sum.sum_gradients, self.loop.state.update

        def sums(replicas: Any, gradients: Any, communication: Any) -> list[tf.Tensor]:
            gradients = [self._flipped("gradients", i, g) for i, g in enumerate(gradients)]
            summed = total(replicas, gradients, communication)
            return [self._flipped("sums", i, g) for i, g in enumerate(summed)]

        with mock.patch.object(weight_update.gradient_sum, "sum_gradients", sums):
            self.loop.compile()
        self._first = self.loop.state.snapshot()
        self.tensors = len(update.slots)

    def _batches(self, start: int) -> Any:
        """Returns the batches from step `start` on."""
        batches = self.loop.synthetic(True)
        for _ in range(start):
            next(batches)
        return batches

    def _flipped(self, kind: str, number: int, x: tf.Tensor) -> tf.Tensor:
        """Inside a step: `x`, with a bit flipped if the armed fault is here."""
        if x.dtype != tf.float32:
            return x
        armed, step, replica, element, bit = (v.read_value() for v in self._fault)
        here = armed == KINDS.index(kind) * 1000 + number
        here &= self.loop.state.step.read_value() == step
        here &= tf.cast(self.loop.replicas.replica_id(), tf.int64) == replica
        words = tf.reshape(tf.bitcast(x, tf.int32), [-1])
        mask = tf.scatter_nd(
            [[element % words.shape[0]]], [tf.bitwise.left_shift(1, tf.cast(bit, tf.int32))], words.shape
        )
        changed = tf.reshape(tf.bitcast(tf.bitwise.bitwise_xor(words, mask), tf.float32), x.shape)
        return tf.where(here, changed, x)

    def trial(self, kind: str, rng: np.random.Generator) -> dict[str, Any]:
        """Trains with one fault; returns what the guard said, and whether the final weights differ from the sound."""
        from common.errors import UserError

        loop, number = self.loop, int(rng.integers(self.tensors if kind != "batches" else 1))
        fault = {"step": int(rng.integers(STEPS)), "replica": int(rng.integers(loop.replicas.num_replicas))}
        fault |= {"element": int(rng.integers(1 << 20)), "bit": int(rng.integers(32))}
        loop.state.restore(self._first)
        armed = KINDS.index(kind) * 1000 + number if kind in KINDS[2:5] else -1
        for variable, value in zip(self._fault, (armed, *fault.values()), strict=True):
            variable.assign(value)
        guard = Guard(loop, EVERY)
        guard.on_start()
        said, batches, nothing = "", loop.train_input(0), loop.synthetic(False)
        edges = sorted({*range(EVERY, STEPS + 1, EVERY), fault["step"]} - {0})
        try:
            for edge in edges:
                if kind in KINDS[:2] and int(loop.state.step) == fault["step"]:
                    self._flip(kind, number, fault)
                loop.call(batches, nothing, edge - int(loop.state.step), 0)
                if edge > fault["step"]:  # A fault that passes: it does not happen again in a replay.
                    self._fault[0].assign(-1)
                if edge % EVERY == 0:
                    guard.check(edge)
        except UserError as error:
            said = str(error)
        match = re.search(r"on replica (\d+) alone", said)
        weights = [np.array(copy) for v in loop.state.model.trainable_variables for copy in self._copies(v)]
        return {
            "kind": kind,
            **fault,
            "seen": bool(said),
            "named": bool(match) and int(match[1]) == fault["replica"],
            "digest": hash(b"".join(w.tobytes() for w in weights)) if not said else 0,
        }

    def _copies(self, variable: Any) -> list[np.ndarray]:
        return [x.numpy() for x in self.loop.replicas.local_results(variable)]

    def _flip(self, kind: str, number: int, fault: dict[str, int]) -> None:
        state = self.loop.state
        slots = list(state.update.slots[number].values())
        variable = state.model.trainable_variables[number] if kind == "weights" else slots[0]
        copy = self.loop.replicas.local_results(variable)[fault["replica"]]
        value = np.array(copy.numpy())
        value.reshape(-1).view(np.uint32)[fault["element"] % value.size] ^= np.uint32(1 << fault["bit"])
        copy.assign(value)

    def costs(self, steps: int, times: int = 10) -> dict[str, float]:
        """Returns the processor seconds of a comparison, a checkpoint, a second of heartbeats, and `steps` steps."""
        loop, step = self.loop, int(self.loop.state.step)
        guard = Guard(loop, 1)
        guard.on_start()
        link, used = heartbeat.Link(), {}
        reading, link._pipe = os.pipe()

        def check() -> None:
            guard._equal = (-1, guard._equal[1])
            guard.check(step)

        def beat() -> None:
            for _ in range(round(1 / heartbeat.BEAT_SECONDS)):
                link._beat_once()
            os.read(reading, 1 << 16)

        with tempfile.TemporaryDirectory() as folder:
            saver = checkpoint.Saver(folder)
            save = lambda: (saver.save(loop), saver.finish(loop.replicas))  # noqa: E731
            for name, call in zip(GUARDS, (check, save, beat), strict=True):
                began = time.process_time()
                for _ in range(times):
                    call()
                used[name] = (time.process_time() - began) / times
        self._fault[0].assign(-1)
        batches, nothing = loop.train_input(0), loop.synthetic(False)
        loop.call(batches, nothing, 10, 0)
        began = time.process_time()
        loop.call(batches, nothing, steps, 0)
        return {**used, "steps": time.process_time() - began}


def main() -> None:
    parser = scripts.parser(__doc__, "guard.json")
    parser.add_argument("--trials", type=int, default=100, help="of each kind (default: %(default)s)")
    parser.add_argument("--replicas", type=int, default=2)
    scripts.add_quick(parser)
    options = parser.parse_args()
    trials = 2 if options.quick else options.trials
    kept = options.output.exists() and not options.quick
    before = json.loads(options.output.read_text()) if kept else {"trials": []}
    result = {**head(), "settings": {"replicas": options.replicas, "steps": STEPS, "every": EVERY}}
    result["trials"] = before["trials"]
    injector = Injector(options.replicas)
    for number in range(len(result["trials"]), trials * len(KINDS)):
        rng = np.random.default_rng(number)
        result["trials"].append(injector.trial(KINDS[number % len(KINDS)], rng))
        if not options.quick and number % 20 == 0:
            write(result, options.output)
    result["costs"] = injector.costs(50 if options.quick else 1000)
    print("processor seconds:", result["costs"])
    seen = Counter(trial["kind"] for trial in result["trials"] if trial["seen"])
    print("seen:", {kind: seen[kind] for kind in KINDS}, "of", len(result["trials"]) // len(KINDS), "each")
    if not options.quick:
        write(result, options.output)


if __name__ == "__main__":
    main()
