"""Chooses the batch that fits this machine's memory and suits the data, and scales the rate to it. TensorFlow-free."""

from __future__ import annotations

import dataclasses
import operator
from typing import Any

from common.config.choices import Draft, Rule
from common.config.hardware import Machine
from common.config.legw import legw
from common.config.schema import RunConfig
from common.errors import UserError

# Share of memory that a batch may fill. The host also holds input buffers, the framework and other programs.
HOST_PART, GPU_PART = 0.5, 0.8
# Share of a GPU's memory that jax's client takes: the default of XLA_PYTHON_CLIENT_MEM_FRACTION (docs.jax.dev, "GPU
# memory allocation").
JAX_PART = 0.75
RESERVE_BYTES = 1 << 30  # TensorFlow, the weights of a small preset and their slots.
# A run has at least LEAST_STEPS steps if the batch can shrink that far. A batch keeps at least LEAST_BATCH examples,
# because batch norm computes its moments from them.
LEAST_STEPS, LEAST_BATCH = 500, 4


def batch(draft: Draft, rule: Rule, machine: Machine, base: RunConfig, total: float) -> None:
    """Chooses the batch sizes, then the learning rate and warmup by LEGW; `total`: examples of all epochs."""
    config = draft.config
    groups, cost, eval_cost = config.num_groups, *example_bytes(rule, config)
    part = JAX_PART if config.replicas == "pjrt" else GPU_PART
    memory = (part * min(machine.gpus) if machine.gpus else HOST_PART * machine.memory) - RESERVE_BYTES
    memory -= rule.weight_bytes(config)
    fits, eval_fits = max(1, int(memory / cost)), max(1, int(memory / eval_cost))
    holds = f"holds {fits}" if memory >= cost else "may not hold even one"
    device = rule.gpu_batch if machine.gpus else power_of_two(base.global_batch_size)
    busy = f"about that of {base.system}; a CPU gains little by more"
    busy = "enough to keep a GPU busy" if machine.gpus else busy
    steps = min(LEAST_STEPS, base.train_epochs * examples_of(base) / base.global_batch_size)
    limits = [
        (fits * groups, f"the memory {holds} of {cost / 1e6:.2g} MB a device"),
        (device * groups, busy),
        (max(total / steps, LEAST_BATCH * groups), f"leaves {steps:.0f} steps for {total:.0f} examples"),
    ]
    most, why = min(limits)
    micro_batches = groups * config.accumulation_steps
    size = power_of_two(most / micro_batches) * micro_batches
    draft.take("global_batch_size", size, f"a power of two a device; {why}")
    while "global_batch_size" not in draft.fixed and _refused(draft.config):
        half = draft.config.global_batch_size // 2
        if half < micro_batches:
            break
        draft.take("global_batch_size", half, "the data are too few for more")
    _rate(draft, base)
    part, why = rule.rate_part(config, base)
    rate = draft.config.optimizer.base_learning_rate
    whole = part * rate / base.optimizer.base_learning_rate  # LEGW's factor too.
    why = f"{why}; {whole:.3g} of the rate of {base.system}"
    draft.take("optimizer.base_learning_rate", part * rate, why)
    needed = power_of_two(max(1, 2 * -(-config.examples_per_evaluation // groups) - 1))
    largest = min(needed, eval_fits, max(device, base.eval_batch_size))
    draft.take("eval_batch_size", power_of_two(largest) * groups, "a power of two that fits")


def example_bytes(rule: Rule, config: Any) -> tuple[float, float]:
    """Returns the estimated bytes of memory that an example takes in a training step and in an evaluation."""
    return rule.example_bytes(config), (rule.eval_bytes or rule.example_bytes)(config)


def _refused(config: RunConfig) -> bool:
    """Whether the benchmark rejects the configuration when the evaluation batch is as large as the training batch."""
    try:
        dataclasses.replace(config, eval_batch_size=config.global_batch_size).validate()
    except UserError:
        return True
    return False


def _rate(draft: Draft, base: RunConfig) -> None:
    """Scales the learning rate and the lengths to the batch by LEGW."""
    ratio = draft.config.global_batch_size / base.global_batch_size
    if ratio == 1:
        return
    scaled = legw(base, ratio)
    why = f"LEGW (common/config/legw.py): {ratio:.3g} times the batch of {base.system}"
    schedule = draft.config.schedule
    lengths = (*schedule.rates, "warmup_epochs", *schedule.in_steps)
    names = [name for name in lengths if hasattr(base.schedule, name)]
    for path in ("optimizer.base_learning_rate", *(f"schedule.{name}" for name in names)):
        draft.take(path, operator.attrgetter(path)(scaled), why)


def examples_of(config: RunConfig) -> int:
    """Returns the examples per epoch, in the unit of the batch and for the smallest batch."""
    return max(1, dataclasses.replace(config, global_batch_size=config.num_groups).examples_per_epoch)


def power_of_two(value: float) -> int:
    """Returns the largest power of two that is at most `value`, but at least 1."""
    return 1 << max(0, int(value).bit_length() - 1)
