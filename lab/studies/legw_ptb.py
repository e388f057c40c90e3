"""Runs LEGW on the Penn Treebank: batches 20 to 640, its competitors, seven solvers, the tuned rate, long runs."""

import argparse
import dataclasses
import pathlib

from lab.studies import legw, legw_mnist
from lab.studies.data import cache, unpack, unzip
from lab.studies.runner import settings

FILES = tuple(f"ptb.{split}.txt" for split in ("train", "valid", "test"))


def _data() -> pathlib.Path:
    """Returns the folder of the three text files, or a folder in the cache, unpacked from the zip file."""
    source = unpack("text") / "ptb"
    if all((source / name).is_file() for name in FILES):
        return source
    return unzip(source / "ptb.zip", FILES, cache() / "ptb")


def _base(rate: float, warmup: float | None = None) -> tuple[str, ...]:
    own = {} if warmup is None else {"schedule__warmup_epochs": warmup}
    return settings(optimizer__base_learning_rate=rate, **own)


# The base values equal PRESETS in ptb/presets.py, which tests/lab/studies/test_studies_legw.py checks.
STUDY = dataclasses.replace(
    legw_mnist.STUDY,
    name="legw-ptb",
    benchmark="ptb",
    preset="cpu-20",
    batch=20,
    rate=0.03,
    factors=(1, 2, 4, 8, 16, 32),
    # The product over the vocabulary is most of the work; a CPU with avx512_bf16 computes it twice as fast.
    flags=settings(precision="bf16"),
    compared=(32, 16, 8, 4, 2),
    parts=("legw",),
    never=0.0,
    lower_is_better=True,
    unit="perplexity",
    held_out=settings(data__eval_split="valid", num_eval_examples=73760),
    tuned_rates=(0.1, 0.2, 0.4, 0.8, 1.6),
    base_rates=(0.0175, 0.025, 0.03, 0.035, 0.05, 0.1),
    base_warmup=0.1,
    close_rates=(),
    warmups=(0.1, 0.025, 0.00625),
    warmup=0.025,
    # Choices that the paper leaves open, one at a time: why does its 640 end where its 20 does, and ours does not?
    changes={
        "base-rate-0.0707": _base(0.070711),
        "init-0.2": settings(init_scale=0.2),
        "forget-bias-1": settings(forget_bias=1),
        "no-clipping": settings(optimizer__clip_norm=0),
        "momentum-of-rates": settings(optimizer__scaled_momentum=False),
        "base-rate-0.1-warmup-0.1": _base(0.1, 0.1),
        "base-rate-0.1-warmup-0.15": _base(0.1, 0.15),
        "base-rate-0.14-warmup-0.15": _base(0.14, 0.15),
        "dropout-0.1": settings(dropout=0.1),
        "no-carry": settings(carry=False),
        "init-0.05": settings(init_scale=0.05),
        "nesterov": settings(optimizer__nesterov=True),
    },
    long_epochs=50,
    # As in the short run, the rate is halved over the last six epochs.
    long_flags=("--config.schedule.boundaries=44,45,46,47,48,49",),
    solvers={
        **legw_mnist.STUDY.solvers,
        "sgd": settings(optimizer__momentum=0, optimizer__base_learning_rate=1),
        "adagrad": legw_mnist.solver("adagrad", 0.1, 0),
    },
    data=_data,
)
add_arguments = legw.add_arguments


def run(args: argparse.Namespace) -> int:
    """Returns the exit status 0; see `legw.run`."""
    return legw.run(STUDY, args)
