"""Padding of a translation benchmark's batches over four replicas.

Lengths are tokens of WMT's 33,708 subwords on the longer side of each pair. The sets are Multi30k's training captions,
and newstest2014's 3,003 pairs, few for many buckets. The script plans two epochs and trains nothing.

- ours: common/data/bucketing.py. All replicas share one bucket per step, and each takes its part of the plan. Limits of
  equal width are GNMT's; a user's own data gets the limits with the least padding.
- unbucketed: all padded to the longest example, one shape. unbucketed_longest: each replica pads to its own longest.

    python -m lab.bench.bucketing [--sets multi30k newstest2014] [--buckets 5 10] [--batch N]
"""

import gzip
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from common.data.bucketing import Buckets, equal_width, least_padding
from common.distributed.replicas.base import Shard
from common.errors import answering
from common.text.subwords import Subwords
from lab.bench.harness import scripts
from lab.bench.harness.scripts import head, write
from lab.studies.data import unpack

REPLICAS, EPOCHS = 4, 2
BAR = 3.0  # Minimum ratio of the unbucketed batches' padding share to ours.
# A replica's work in a step: indices of examples, rows (including padding rows), tokens per row.
Part = tuple[np.ndarray, int, int]
Steps = list[list[Part]]


def ours(lengths: np.ndarray, limits: Sequence[int], batch: int, epoch: int) -> Steps:
    buckets = Buckets(lengths, limits)
    plan = buckets.epoch(0, epoch, batch)
    shards = [plan.shard(Shard(i, REPLICAS)) for i in range(REPLICAS)]
    return [
        [_part(s.examples[step], buckets.limits[s.buckets[step]]) for s in shards]
        for step in range(plan.steps)
    ]


def _part(examples: np.ndarray, length: int) -> Part:
    return examples[examples >= 0], len(examples), int(length)


def unbucketed(lengths: np.ndarray, limits: Sequence[int], batch: int, epoch: int) -> Steps:
    return [[(e, batch // REPLICAS, limits[-1]) for e in parts] for parts in _shuffled(lengths, batch, epoch)]


def unbucketed_longest(lengths: np.ndarray, limits: Sequence[int], batch: int, epoch: int) -> Steps:
    return [
        [(e, len(e), int(lengths[e].max(initial=0))) for e in parts]
        for parts in _shuffled(lengths, batch, epoch)
    ]


def _shuffled(lengths: np.ndarray, batch: int, epoch: int) -> Iterator[list[np.ndarray]]:
    """Yields the examples of every replica for each step."""
    order = np.random.default_rng([0, epoch]).permutation(len(lengths))
    for first in range(0, len(order), batch):
        yield np.array_split(order[first : first + batch], REPLICAS)


PLANS: dict[str, Callable[[np.ndarray, Sequence[int], int, int], Steps]] = {
    f.__name__: f for f in (ours, unbucketed, unbucketed_longest)
}


def judge(lengths: np.ndarray, epochs: Sequence[Steps]) -> dict[str, Any]:
    """Returns the costs of the plans of some epochs."""
    steps = [step for epoch in epochs for step in epoch]
    work = np.array([[rows * length for _, rows, length in step] for step in steps])
    taken = [np.sort(np.concatenate([e for step in epoch for e, _, _ in step])) for epoch in epochs]
    real = len(epochs) * int(lengths.sum())
    return {
        "steps_per_epoch": len(steps) / len(epochs),
        "padding_share": 1 - real / int(work.sum()),
        "imbalance": work.max(1).sum() / work.mean(1).sum() - 1,
        "every_example_once_an_epoch": all(np.array_equal(t, np.arange(len(lengths))) for t in taken),
    }


def measure(lengths: np.ndarray, limits: list[int], batch: int) -> dict[str, Any]:
    """Returns the results of all plans for buckets with these limits."""
    rows = {
        name: judge(lengths, [plan(lengths, limits, batch, epoch) for epoch in range(EPOCHS)])
        for name, plan in PLANS.items()
    }
    own = rows["ours"]
    for row in rows.values():
        row["padding_share_over_ours"] = row["padding_share"] / own["padding_share"]
    less = {name: rows[name]["padding_share_over_ours"] for name in ("unbucketed", "unbucketed_longest")}
    return {
        "limits": limits,
        "plans": rows,
        "no_imbalance": own["imbalance"] == 0,
        "meets_bar": {name: ratio >= BAR for name, ratio in less.items()},
    }


def kinds(lengths: np.ndarray, count: int) -> dict[str, list[int]]:
    """Returns the limits of `count` buckets in both ways: equal width (as published) and least padding (own data)."""
    return {
        "of equal width": equal_width(int(lengths.max()), count),
        "of least padding": least_padding(lengths, count),
    }


def lengths_of(name: str) -> np.ndarray:
    """Returns the tokens on the longer side of each pair, including the end of sentence."""
    text = unpack("text")
    words = Subwords(text / "wmt14_ende" / "vocab.translate_ende_wmt32k.32768.subwords")

    def side(path: Path) -> np.ndarray:
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "rt", encoding="utf-8") as file:
            return np.array([len(words.encode(line.rstrip("\n"))) for line in file])

    if name == "multi30k":
        paths = [text / "multi30k" / f"train.{language}.gz" for language in ("en", "de")]
    else:
        paths = [text / "wmt14_ende" / f"newstest2014.{language}" for language in ("en", "de")]
    return np.maximum(*map(side, paths))


SETS = ("multi30k", "newstest2014")


@answering()
def main() -> None:
    parser = scripts.parser(__doc__, "bucketing.json")
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=SETS)
    parser.add_argument("--buckets", type=int, nargs="+", default=[5, 10])
    parser.add_argument("--batch", type=int, default=128, help=f"pairs of a step, of all {REPLICAS} replicas")
    options = parser.parse_args()
    if options.batch % REPLICAS:
        parser.error(f"--batch={options.batch}: does not divide into {REPLICAS} replicas")
    result: dict[str, Any] = {
        **head(),
        "settings": {"replicas": REPLICAS, "batch": options.batch, "epochs": EPOCHS, "bar": BAR},
        "sets": {},
    }
    for name in options.sets:
        lengths = lengths_of(name)
        quantiles = np.quantile(lengths, [0, 0.05, 0.5, 0.95, 1]).tolist()
        found = {
            f"{count} buckets {kind}": measure(lengths, limits, options.batch)
            for count in options.buckets
            for kind, limits in kinds(lengths, count).items()
        }
        result["sets"][name] = {"pairs": len(lengths), "length_quantiles": quantiles, "buckets": found}
        for case, of_case in found.items():
            for plan, row in of_case["plans"].items():
                padding = f"padding {row['padding_share']:6.1%} ({row['padding_share_over_ours']:5.2f}x ours)"
                once = "" if row["every_example_once_an_epoch"] else ", NOT every example once"
                print(f"{name}, {case}, {plan:18} {padding}{once}")
    write(result, options.output)


if __name__ == "__main__":
    sys.exit(main())
