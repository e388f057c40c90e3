"""Llama 3.1 8B on a card, with weights that the card makes: fused attention beside plain, timed full steps."""

import math
import statistics
from pathlib import Path
from typing import Any

import numpy as np

from common.distributed import pjrt_program
from common.export import rules
from lab.bench.gpu.child import Turn, jax_of
from lab.bench.gpu.networks import exported_step
from lab.bench.harness import figures
from lab.bench.harness.replayed import Replay

# Of the gradients, relative to their norm, between two orders of bfloat16 sums: 2^-8 for each rounding, of which a
# path through two layers has some ten that are independent.
TOLERANCE = 0.02
# Of the first loss, in nats: its formula is the mean over random weights and tokens.
LOSS_TOLERANCE = 0.05


class Random(Replay):
    """A replay whose arguments the device makes, because they are larger than the host."""

    def reset(self) -> None:
        import jax

        self.buffers.clear()
        for i, argument in enumerate(self.program["arguments"]):
            about = self._about[argument["name"]]
            if about["role"] in ("constant", "counter"):
                value = rules.make(about["rule"], about["shape"], about["dtype"], self._stored)
                self.buffers.append(self._placement.place([value]))
                continue
            make = jax.jit(self._maker(about), out_shardings=self._placement.sharding)
            self.buffers.append(make(jax.random.key(i)))

    def _maker(self, about: dict[str, Any]) -> Any:
        """Returns key -> a first value: weights as the network's, norms 1, slots 0, any rotations and tokens."""
        import jax
        import jax.numpy as jnp

        config, shape, dtype = self.manifest["config"], (1, *about["shape"]), about["dtype"]
        if about["role"] == "input":
            return lambda key: jax.random.randint(key, shape, 0, config["vocab_size"], dtype)
        if about["role"] == "statistic":
            return lambda key: jax.random.uniform(key, shape, dtype, -1, 1)
        if about["role"] == "weight" and len(shape) > 2:
            return lambda key: config["init_std"] * jax.random.normal(key, shape, dtype)
        return lambda key: jnp.full(shape, about["role"] == "weight", dtype)

    def first_moments(self) -> dict[str, Any]:
        """Returns AdamW's first moments on the device; after one step, a tenth of the clipped gradient."""
        pairs = zip(self.program["arguments"], self.buffers)
        return {a["name"]: b for a, b in pairs if a["name"].endswith("/m")}


def _loss(replay: Random) -> float:
    return float(pjrt_program.first(replay.step()[0]))


def attention(job: dict, turn: Turn) -> dict[str, Any]:
    """Compares a step's loss and gradients between two forms of attention, from the same weights and tokens."""
    jax_of(job)
    losses, moments = [], []
    for export in (job["export"], job["other"]):
        replay = Random(*exported_step({"export": export}, values=False))
        with turn.together():
            replay.compile()
            replay.reset()
            losses.append(_loss(replay))
            moments.append({name: np.asarray(x) for name, x in replay.first_moments().items()})
            replay.buffers.clear()
    errors = {
        name: float(np.linalg.norm(one - moments[1][name]) / np.linalg.norm(one))
        for name, one in moments[0].items()
    }
    worst = max(errors, key=lambda name: errors[name] if math.isfinite(errors[name]) else math.inf)
    return {
        "forms": [Path(job[part]).name for part in ("export", "other")],
        "losses": losses,
        "gradient_error": {"relative": errors[worst], "of": worst},
        "equal": errors[worst] <= TOLERANCE and abs(losses[0] - losses[1]) <= TOLERANCE,
    }


def full_step(job: dict, turn: Turn) -> dict[str, Any]:
    """Times steps of one sequence, each by itself; also checks the first loss against its formula."""
    jax = jax_of(job)
    replay = Random(*exported_step(job, values=False))
    with turn.together():
        replay.compile()
    with turn.alone():
        replay.reset()
        losses = [_loss(replay) for _ in range(2)]
        seconds = replay.time(0, job.get("steps", 10), 1)
        row = figures.speed(replay, seconds, figures.peak_of(jax.devices()[0], replay.manifest["precision"]))
    config = replay.manifest["config"]
    # The final norm makes the logits' variance width x std^2, whatever the layers do (docs of llama31_8b).
    expected = math.log(config["vocab_size"]) + config["width"] * config["init_std"] ** 2 / 2
    tokens = config["sequence_length"] * replay.manifest["batch"]["train"]
    return {
        "network": "llama31_8b",
        "batch": replay.manifest["batch"]["train"],
        "precision": replay.manifest["precision"],
        "losses": losses,
        "expected_loss": expected,
        "loss_is_expected": abs(losses[0] - expected) <= LOSS_TOLERANCE,
        "tokens_per_second": tokens / statistics.median(seconds),
        **row,
        "model_flops_utilization": row["share_of_peak"],
        "spread": (max(seconds) - min(seconds)) / statistics.median(seconds),
    }
