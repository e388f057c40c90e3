"""Says before a run whether it will beat its data's baseline, and after it, from its curve, why it learned too little.

The thresholds are this project's: they name the cause of every run in tests/timetotrain/run/curves.json, all of which
have deliberate faults. Runs marked `held_out` set no threshold. TensorFlow-free.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from common.config.choices import Rule
from common.config.run_length import RunLength
from common.config.schema import RunConfig
from common.train import events
from timetotrain.run import history

SHORT, LARGE, SMALL, DATA = "too short", "rate too large", "rate too small", "data"
_PARTS = 10  # The curve is read as the means of so many parts.
_RISEN = 1.02  # A loss of so many times its start has grown.
_MOVED = 0.1  # A loss that has lost less than this part of its start has hardly moved.
_FEW_STEPS = 200  # Fewer steps show little of a rate; warmup takes most of them.
_FALLS = 0.03  # Part of the loss that the last fifth of a run that still learns takes off the fifth before.
_OVERFIT = 1.03  # An evaluation's loss of so many times the lowest one before has grown.
_GAIN = 0.99  # A loss of more than this part of the lowest one before has not fallen.
_FACTOR = 5  # A sixth of SSD's rate learned steadily where the whole fell to nothing.
_TRAINED = 5  # Part of the examples and epochs that a network needs if it starts from weights: this project's choice.


def outlook(config: RunConfig, least: Mapping[str, Any], rule: Rule | None) -> str:
    """Returns whether a run will beat its data's baseline, and if not, what would help; "" if nothing is known.

    Runs with too few examples times epochs lost to it; of those with enough of them, but few examples, some won.

    Args:
      least: the baseline (timetotrain.run.ending.baseline).
      rule: the benchmark's; None if it has none.
    """
    if not least or rule is None or rule.enough is None:
        return ""
    trained = bool(config.initial_weights_file)
    examples, passes = (math.ceil(number / (_TRAINED if trained else 1)) for number in rule.enough)
    classes = getattr(config, "num_classes", 1) - rule.background
    run = config.train_epochs
    if config.train_steps:
        run = config.train_steps * config.global_batch_size / config.num_train_examples
    have, of = config.num_train_examples / classes, "examples of a class" if classes > 1 else "examples"
    baseline = f"the baseline, {config.quality.text(least['value'])} ({least['what']})"
    counts = f"{have:.0f} {of} in {run:.3g} epochs"
    if have >= examples and have * run >= passes:
        return f"will beat {baseline}: it has {counts}"
    public = f"timetotrain weights {config.benchmark}, or " if rule.weights else ""
    ways = [] if trained else [f"weights ({public}--init=FILE)"]
    ways += [f"{examples} {of}"] if have < examples else []
    epochs = math.ceil(passes / max(have, examples))
    ways += [f"--config.train_epochs={epochs}"] if run < epochs else []
    chance = "may not" if have * run >= passes else "will hardly"
    return f"{chance} beat {baseline}: it has {counts}; what helps: {', '.join(ways)}"


def cause(records: Sequence[history.Record], diverged: bool = False) -> str:
    """Returns SHORT, LARGE, SMALL or DATA.

    Args:
      records: the run's history (timetotrain/run/history.py).
      diverged: whether the loss was not finite.
    """
    points = [r for r in records if r["kind"] == "train"]
    losses = [r["loss"] for r in points]
    if diverged or not all(map(math.isfinite, losses)):
        return LARGE
    if len(losses) < 2:
        return SHORT
    start, means = losses[0], _means(losses)
    few = points[-1]["step"] < _FEW_STEPS
    gained = start - min(means)
    if max(means[1:]) > _RISEN * start or (gained > _MOVED * abs(start) and means[-1] > start - gained / 2):
        return LARGE  # Grown above its start, or back half of the way.
    if start - means[-1] < _MOVED * abs(start):
        return SHORT if few else SMALL
    evaluated = [history.loss_of(r) for r in records if r["kind"] == "evaluation"]
    if len(evaluated) > 1 and evaluated[-1] > _OVERFIT * min(evaluated) and means[-1] < min(evaluated):
        return DATA
    last, before = sum(means[-2:]), sum(means[-4:-2])
    return SHORT if few or before - last > _FALLS * abs(before) else DATA


def saturated(config: RunConfig, records: Sequence[history.Record]) -> str:
    """Returns why more training gains nothing: the last `patience` evaluations beat neither the best quality before
    them by more than its usual change between two evaluations, nor the lowest loss by _GAIN; "" if they do.

    A network that fits the evaluated examples perfectly goes on while its loss falls: its scores still rise.
    """
    evaluations, last = [r for r in records if r["kind"] == "evaluation"], config.patience
    if not last or config.logged_target is not None or not last < len(evaluations):
        return ""
    if evaluations[-1]["step"] >= RunLength.of(config).train_steps:
        return ""
    scores = [config.quality.score(r["value"]) for r in evaluations]
    if not math.isfinite(max(scores)):
        return ""  # Another message says so.
    losses = [history.loss_of(r) for r in evaluations]
    noise = statistics.median(abs(b - a) for a, b in zip(scores[-last - 1 :], scores[-last:]))
    if max(scores[-last:]) > max(scores[:-last]) + noise or min(losses[-last:]) < _GAIN * min(losses[:-last]):
        return ""
    return f"{events.SATURATED} in {last} evaluations; --config.patience=0 trains on"


def tried(config: RunConfig, why: str) -> str:
    """Returns what to try against the cause `why`, then what to try next."""
    rate = config.optimizer.base_learning_rate
    smaller = f"--config.optimizer.base_learning_rate={rate / _FACTOR:.2g}"
    larger = f"--config.optimizer.base_learning_rate={rate * _FACTOR:.2g}"
    longer = f"--config.train_epochs={2 * config.train_epochs:g}"
    return {
        SHORT: f"the run was too short: train longer, {longer}; then try another rate, {larger} or {smaller}",
        LARGE: f"the loss grew: try a smaller rate, {smaller}; then train longer, {longer}",
        SMALL: f"the loss hardly moved: try a larger rate, {larger}; then train longer, {longer}",
        DATA: "the loss has come to rest, and neither more epochs nor another rate will do: give more or cleaner data, "
        "or start from weights, --config.init=FILE",
    }[why]


def _means(losses: Sequence[float]) -> list[float]:
    """Returns the means of _PARTS equal parts of the curve; of a shorter curve, its points."""
    count = min(_PARTS, len(losses))
    edges = [len(losses) * i // count for i in range(count + 1)]
    return [sum(losses[a:b]) / (b - a) for a, b in zip(edges, edges[1:])]
