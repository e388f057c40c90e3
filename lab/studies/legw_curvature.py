"""Measures the curvature along the gradient, LEGW's explanation of warmup, by iteration for several batch sizes.

Source: section 4 and figure 3 of "Large-Batch Training for LSTM and Beyond". L(x, g) = |g' H g| / |g|^2 is the inverse
of the best step along g, on a fixed small batch. H g comes from finite differences of the gradient. The paper shows a
peak in early iterations; as the batch grows, it moves to later ones.
"""

import argparse
import dataclasses
import importlib
import json
import pathlib
import statistics
from collections.abc import Callable, Mapping, Sequence

from common import files
from common.config.digest import digest
from common.config.schema import RunConfig
from common.errors import UserError
from lab.studies import legw
from lab.studies.data import ROOT
from lab.studies.legw_values import MNIST, PTB
from lab.studies.runner import folder_for
from timetotrain import figures

STUDIES = {"mnist": MNIST, "ptb": PTB}
FACTORS = {"mnist": "1,4,16,64", "ptb": "1,4,16,32"}
# Step length in each direction, in the space of all weights, whose norm is about ten. Rounding errors require a
# longer step, the third derivative a shorter one.
STEP = 1e-3
WINDOW = 9  # Measurements per median: a single one may be ten times its neighbors.


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `python -m lab.studies legw-curvature`."""
    parser.add_argument("benchmark", choices=list(STUDIES))
    said = "; ".join(f"{name}: {factors}" for name, factors in FACTORS.items())
    parser.add_argument("--factors", help=f"by which the base batch is multiplied (default: {said})")
    parser.add_argument("--steps", type=int, default=400, help="iterations of each batch")
    parser.add_argument("--every", type=int, default=4, help="iterations between two measurements")
    parser.add_argument(
        "--examples", type=int, help="of the fixed batch, for ptb streams of it; default: the base batch"
    )


def run(args: argparse.Namespace) -> int:
    """Measures each batch without a record, then writes csv and picture to lab/studies/legw-curvature-NAME/."""
    study, given = STUDIES[args.benchmark], args.factors or FACTORS[args.benchmark]
    try:
        factors = [int(k) for k in given.split(",")]
    except ValueError:
        raise UserError(f"--factors={given}: not whole numbers; give a value such as 1,4,16") from None
    examples = study.batch if args.examples is None else args.examples
    for flag, value in (("factors", min(factors)), ("steps", args.steps), ("every", args.every)):
        if value < 1:
            raise UserError(f"--{flag}: {value} is not at least 1")
    if not 1 <= examples <= study.batch * min(factors):
        raise UserError(
            f"--examples={examples}: must be 1..{study.batch * min(factors)}, the smallest batch; it is one for all"
        )
    name = f"legw-curvature-{args.benchmark}"
    measured, curves = ROOT / "results" / f"study-{name}", {}
    for k in factors:
        config = _configured(study, k)
        settings = {"steps": args.steps, "every": args.every, "examples": examples, "config": digest(config)}
        path = measured / f"{study.batch * k}.json"
        curves[study.batch * k] = _recorded(path, settings) or _measured(path, settings, study, config)
    points = sum(map(len, curves.values()))
    _publish(folder_for(ROOT / "lab/studies" / name, "curvature.csv", points, measured), curves)
    return 0


def _recorded(path: pathlib.Path, settings: Mapping) -> list[tuple[int, float]] | None:
    if not path.is_file():
        return None
    try:
        record = json.loads(path.read_text())
        if record["settings"] == settings:
            return record["curve"]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: no record of this study ({error}); delete it") from error
    raise UserError(f"{path}: measured with other settings {record['settings']}; move it away")


def _configured(study: legw.Study, k: int) -> RunConfig:
    """Uses the base batch's rate without warmup: a warmup would hide the very peak that it is meant to cover."""
    config = importlib.import_module(f"{study.benchmark}.presets").PRESETS[study.preset]
    config = dataclasses.replace(
        config,
        global_batch_size=study.batch * k,
        schedule=dataclasses.replace(config.schedule, kind="constant", boundaries=(), warmup_epochs=0.0),
    )
    config.validate()
    return config


def _measured(path: pathlib.Path, settings: Mapping, study: legw.Study, config: RunConfig) -> list:
    task = importlib.import_module(f"{study.benchmark}.task").Task(config, str(study.data()))
    curve = curvature(task, settings["steps"], settings["every"], settings["examples"])
    files.write_atomically(path, json.dumps({"settings": settings, "curve": curve}).encode())
    return curve


def curvature(task: object, steps: int, every: int, examples: int) -> list[tuple[int, float]]:
    """Measures [(iteration, L)] while `task` trains from its seed on one replica.

    The fixed batch has `examples` training examples, the same for every batch size of the task. It cannot be larger
    than the task's batch, because a stateful model is built for that size.
    """
    from common.config.clock import Clock
    from common.distributed.replicas.base import Shard
    from common.distributed.replicas.single import Single
    from common.layers.precision import precision
    from common.train.state import State
    from common.train.step import make_train_step

    config, replicas = task.config, Single()
    policy = precision(config.precision)
    state = State(task, replicas, policy)
    probe = make_probe(task, state.model, fixed_batch(task, examples))
    train = tf_function(make_train_step(task, state, Clock.of(config)))
    batches = iter(task.train_input(Shard(), config.global_batch_size, 0))
    curve = []
    for step in range(steps):
        if step % every == 0:
            curve.append((step, float(probe())))
        train(next(batches), state.step)
        state.step.assign_add(1)
    return curve


def fixed_batch(task: object, examples: int) -> Mapping:
    """Returns the first batch of `examples` with another seed: digits, or the first words of that many text streams."""
    from common.distributed.replicas.base import Shard

    config = dataclasses.replace(task.config, seed=task.config.seed + 1, global_batch_size=examples)
    return next(iter(type(task)(config, str(task.data_dir)).train_input(Shard(), examples, 0)))


def tf_function(function: Callable) -> Callable:
    """Returns tf.function(function); imports TensorFlow here, so that only training loads it."""
    import tensorflow as tf

    return tf.function(function, autograph=False)


def make_probe(task: object, model: object, batch: Mapping) -> Callable[[], object]:
    """Returns `probe`, which computes |g' H g| / |g|^2 on `batch` and leaves every variable unchanged."""
    import tensorflow as tf

    variables = model.trainable_variables

    def gradient() -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            terms = task.loss(model, batch).values()
            loss = tf.add_n([t.total / t.weight for t in terms])
        return [tf.convert_to_tensor(g) for g in tape.gradient(loss, variables)]

    def norm(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
        return tf.sqrt(tf.add_n([tf.reduce_sum(x * x) for x in tensors]))

    @tf.function(autograph=False)
    def probe() -> tf.Tensor:
        before = [tf.identity(v) for v in model.variables]
        weights = [tf.identity(v) for v in variables]
        g = gradient()
        length = norm(g)
        direction = [x / length for x in g]
        sides = []
        for sign in (1.0, -1.0):
            for variable, weight, d in zip(variables, weights, direction):
                variable.assign(weight + sign * STEP * d)
            sides.append(gradient())
        for variable, value in zip(model.variables, before):
            variable.assign(value)
        products = [tf.reduce_sum(d * (a - b)) for d, a, b in zip(direction, *sides)]
        return tf.abs(tf.add_n(products)) / (2 * STEP)

    return probe


def running_median(curve: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """Returns the median of the `WINDOW` measurements around each one; at the ends of fewer."""
    half = WINDOW // 2
    return [
        (step, statistics.median(value for _, value in curve[max(i - half, 0) : i + half + 1]))
        for i, (step, _) in enumerate(curve)
    ]


def _publish(folder: pathlib.Path, curves: Mapping[int, Sequence]) -> None:
    """Writes curvature.csv and curvature.png; prints the peaks."""
    points = [[batch, *point] for batch, curve in curves.items() for point in curve]
    files.write_csv(folder / "curvature.csv", ["batch", "iteration", "curvature"], points)
    lines = []
    labels = {"xlabel": "iteration", "ylabel": f"L(x, g), and its median over {WINDOW} measurements"}
    with figures.picture(folder / "curvature.png", yscale="log", **labels) as axes:
        for number, (batch, curve) in enumerate(curves.items()):
            smooth = running_median(curve)
            axes.plot(*zip(*curve), color=f"C{number}", alpha=0.25)
            axes.plot(*zip(*smooth), color=f"C{number}", label=f"batch {batch}")
            peaks = [max(found, key=lambda point: point[1]) for found in (curve, smooth)]
            lines.append((batch, *(f"{height:.3g}, {at}" for at, height in peaks), f"{smooth[-1][1]:.3g}"))
    head = ("batch", "largest L, at iteration", "largest median, at iteration", "median at the end")
    print(files.markdown_table(head, lines))
