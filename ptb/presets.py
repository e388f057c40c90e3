"""Defines the presets of the PTB benchmark, and the hyperparameters for its log header. TensorFlow-free.

LEGW = "Large-Batch Training for LSTM and Beyond", section 5.1.2. Network and schedule come from the "small" model in
TensorFlow's ptb_word_lm.py (Zaremba et al., "Recurrent Neural Network Regularization"). LEGW trains it with momentum,
and keeps the full rate for seven epochs, not four.
"""

from pathlib import Path
from typing import Any

from common.config.choices import Rule
from common.config.optimizer import Sgd
from common.config.presets import legw_family, momentum_key, solver_keys, with_names, without_metadata
from common.config.schedule import Step
from ptb.config import Config


def hyperparameters(config: Config) -> list[tuple[str, Any, dict]]:
    """Lists the hyperparameters for the log header: [(key, value, metadata)], read from `config`."""
    schedule = config.schedule
    pairs: dict[str, Any] = {
        "global_batch_size": config.global_batch_size,
        "train_epochs": config.train_epochs,
        "num_steps": config.num_steps,
        "init_scale": config.init_scale,
        **solver_keys(config),
        "opt_clip_norm": config.optimizer.clip_norm,
    }
    pairs |= {name: getattr(config, name) for name in ("forget_bias", "dropout") if getattr(config, name)}
    if schedule.kind == "step":
        pairs |= {
            "opt_learning_rate_decay_boundary_epochs": list(schedule.boundaries),
            "opt_learning_rate_decay_factor": schedule.factor,
        }
    return without_metadata(pairs | momentum_key(config))


# As in ptb_word_lm.py, the loss is summed over a sequence's steps and averaged over streams. The rate and the clipping
# norm of 5 assume this scale. LEGW gives neither the base rate nor the base warmup; docs/presets.md explains our
# choice.
_LEGW = Config(
    global_batch_size=20,
    train_epochs=13.0,
    optimizer=Sgd(base_learning_rate=0.03, momentum=0.9, scaled_momentum=True, clip_norm=5.0),
    schedule=Step(warmup_epochs=0.025, boundaries=(7.0, 8.0, 9.0, 10.0, 11.0, 12.0), factor=0.5),
)

PRESETS: dict[str, Config] = with_names(
    {
        # A minute on a laptop: the generated language of ptb/tiny.py.
        "cpu-tiny": Config(
            source="this repository: tuned for two CPU cores on the language that ptb/tiny.py generates",
            division="open",
            smoke_run=True,
            num_train_examples=40000,
            num_eval_examples=8000,
            global_batch_size=20,
            train_epochs=13.0,
            vocabulary_size=31,
            units=64,
            num_steps=10,
            quality_target=4.0,
            optimizer=Sgd(base_learning_rate=0.1, momentum=0.9, scaled_momentum=True, clip_norm=5.0),
            schedule=Step(warmup_epochs=0.1, boundaries=(7.0, 8.0, 9.0, 10.0, 11.0, 12.0), factor=0.5),
        ),
        # Presets "cpu-20" to "cpu-640".
        **legw_family(
            _LEGW,
            name="cpu-{batch}",
            source="LEGW 5.1.2, batch 20 x {factor}; base rate and warmup are ours",
            doublings=5,
        ),
    }
)


def _example_bytes(config: Config, logits: float = 8, units: float = 60) -> float:
    """Estimates the memory per stream in a step, in bytes (measured with cpu-20, mostly logits)."""
    return config.num_steps * (logits * config.vocabulary_size + units * config.layers * config.units)


def _eval_bytes(config: Config) -> float:
    return _example_bytes(config, logits=4, units=18)


def _counts(config: Config, folder: Path) -> dict[str, int]:
    """Counts the words of both texts, and the different ones of the training text."""
    from ptb import text  # Presets need no numpy.

    paths = text.files(config, folder)
    if not all(path.is_file() for path in paths):  # The input names the missing file.
        return {}
    train, held_out = map(text.read, paths)
    return {
        "num_train_examples": len(train),
        "num_eval_examples": len(held_out),
        "vocabulary_size": len(set(train)),
    }


HERE = Rule(
    preset="cpu-20", example_bytes=_example_bytes, eval_bytes=_eval_bytes, gpu_batch=160, counts=_counts
)
