"""LEGW, linear-epoch gradual warmup: how a tuned configuration is carried over to another batch. TensorFlow-free.

"Large-Batch Training for LSTM and Beyond", section 3: batch x k gives rate x sqrt(k) and warmup epochs x k.
"""

from __future__ import annotations

import dataclasses
import fractions
import math
from typing import TypeVar

from common.errors import UserError

C = TypeVar("C")


def legw(config: C, k: float) -> C:
    """The batch times `k`, the rate times sqrt(k), the warmup epochs times `k`; else equal, in epochs.

    `k` below 1 goes the other way: tune a large batch, train a small one (section 3.3). What the configuration
    counts in steps keeps its length in epochs; `schedule.warmup_steps` stays: k times the epochs of k times
    the batch are as many steps.

    Raises:
      UserError: `k` is not positive, or the batch times `k` is not a whole number.
    """
    ratio = fractions.Fraction(k).limit_denominator(1 << 20) if k > 0 else fractions.Fraction(0)
    batch = config.global_batch_size * ratio
    if ratio == 0 or batch.denominator != 1:
        raise UserError(
            f"legw: config.global_batch_size={config.global_batch_size} times {k} is no whole batch; "
            f"choose another k"
        )
    root = math.sqrt(ratio)
    optimizer, schedule = config.optimizer, config.schedule
    return dataclasses.replace(
        config,
        global_batch_size=int(batch),
        train_steps=math.ceil(config.train_steps / ratio),
        steps_per_block=math.ceil(config.steps_per_block / ratio),
        first_block_steps=math.ceil(config.first_block_steps / ratio),
        optimizer=dataclasses.replace(optimizer, base_learning_rate=optimizer.base_learning_rate * root),
        schedule=dataclasses.replace(
            schedule,
            warmup_epochs=float(schedule.warmup_epochs * ratio),
            initial_learning_rate=schedule.initial_learning_rate * root,
            decay_start_step=math.ceil(schedule.decay_start_step / ratio),
            decay_interval=math.ceil(schedule.decay_interval / ratio),
        ),
    )
