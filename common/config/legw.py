"""Scales a tuned configuration to another batch size by LEGW, linear-epoch gradual warmup. TensorFlow-free.

"Large-Batch Training for LSTM and Beyond", section 3: for k times the batch, use sqrt(k) times the learning rate and k
times the warmup epochs.
"""

import dataclasses
import fractions
import math
from typing import TypeVar

from common.errors import UserError

C = TypeVar("C")


def legw(config: C, k: float) -> C:
    """Returns `config` with `k` times the batch and warmup epochs and sqrt(k) times the rate.

    With a `k` below 1 you tune a large batch, then train with a smaller one (section 3.3). Fields that count steps keep
    their length in epochs. `schedule.warmup_steps` stays: k times the epochs at k times the batch is the same number of
    steps. Raises UserError if `k` is not positive, or the batch times `k` is not a whole number.
    """
    ratio = fractions.Fraction(k).limit_denominator(1 << 20) if k > 0 else fractions.Fraction(0)
    batch = config.global_batch_size * ratio
    if ratio == 0 or batch.denominator != 1:
        raise UserError(
            f"legw: config.global_batch_size={config.global_batch_size} times {k} is not a whole batch; "
            f"choose another k"
        )
    root = math.sqrt(ratio)
    optimizer, schedule = config.optimizer, config.schedule
    rates = {name: getattr(schedule, name) * root for name in schedule.rates}
    steps = {name: math.ceil(getattr(schedule, name) / ratio) for name in schedule.in_steps}
    return dataclasses.replace(
        config,
        global_batch_size=int(batch),
        train_steps=math.ceil(config.train_steps / ratio),
        steps_per_block=math.ceil(config.steps_per_block / ratio),
        optimizer=dataclasses.replace(optimizer, base_learning_rate=optimizer.base_learning_rate * root),
        schedule=dataclasses.replace(
            schedule,
            warmup_epochs=float(schedule.warmup_epochs * ratio),
            **rates,
            **steps,
        ),
    )
