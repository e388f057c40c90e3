"""Presets of the Penn Treebank language model, and what of a configuration is logged. TensorFlow-free.

LEGW = "Large-Batch Training for LSTM and Beyond", section 5.1.2. Its network and schedule are those of the "small"
model of TensorFlow's ptb_word_lm.py (Zaremba et al., "Recurrent Neural Network Regularization"), which LEGW trains with
momentum and for seven epochs, not four, at the full rate.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from common.config.clock import Clock
from common.config.legw import legw
from common.config.schema import Optimizer, Schedule
from ptb.config import Config


def hyperparameters(config: Config) -> list[tuple[str, Any, dict]]:
    """What the log's header says about the run: [(key, value, metadata)], read from `config`."""
    optimizer, schedule = config.optimizer, config.schedule
    warmup = schedule.logged_warmup_epochs(Clock.of(config).steps_per_epoch)
    pairs: dict[str, Any] = {
        "global_batch_size": config.global_batch_size,
        "train_epochs": config.train_epochs,
        "num_steps": config.num_steps,
        "init_scale": config.init_scale,
        "opt_name": optimizer.name,
        "opt_base_learning_rate": optimizer.base_learning_rate,
        "opt_learning_rate_warmup_epochs": warmup,
        "opt_learning_rate_schedule": schedule.kind,
        "opt_clip_norm": optimizer.clip_norm,
    }
    if schedule.kind == "step":
        pairs |= {
            "opt_learning_rate_decay_boundary_epochs": list(schedule.boundaries),
            "opt_learning_rate_decay_factor": schedule.factor,
        }
    if optimizer.has_momentum:
        pairs["opt_momentum"] = optimizer.momentum
    return [(key, value, {}) for key, value in pairs.items()]


# The loss is that of ptb_word_lm.py, summed over the steps of a sequence and averaged over streams, and so are the rate
# and the clipping norm of 5 that go with it. LEGW does not give the base rate and warmup: docs/ptb-presets.md says how
# ours were chosen.
_LEGW = Config(
    optimizer=Optimizer(
        name="sgd", base_learning_rate=0.03, momentum=0.9, scaled_momentum=True, clip_norm=5.0
    ),
    schedule=Schedule(
        kind="step", warmup_epochs=0.025, boundaries=(7.0, 8.0, 9.0, 10.0, 11.0, 12.0), factor=0.5
    ),
)
LARGEST_FACTOR = 32
_LEGW_PRESETS = {
    f"cpu-{20 * 2**i}": replace(
        legw(_LEGW, 2**i),
        source=f"LEGW 5.1.2, batch 20 x {2**i}; base rate and warmup are ours",
    )
    for i in range(LARGEST_FACTOR.bit_length())
}

# --- A laptop, a minute: the generated language of ptb/tiny.py.
_CPU_TINY = replace(
    _LEGW,
    source="this repository: tuned for two CPU cores on the language that ptb/tiny.py generates",
    division="open",
    smoke_run=True,
    num_train_examples=40000,
    num_eval_examples=8000,
    vocabulary_size=31,
    units=64,
    num_steps=10,
    quality_target=4.0,
    optimizer=replace(_LEGW.optimizer, base_learning_rate=0.1),
    schedule=replace(_LEGW.schedule, warmup_epochs=0.1),
)

PRESETS: dict[str, Config] = {
    name: replace(config, system=name) for name, config in {"cpu-tiny": _CPU_TINY, **_LEGW_PRESETS}.items()
}
