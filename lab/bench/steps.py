"""Steps of this project's networks against the same networks of named peers: Keras, tf-models, PyTorch, JAX.

Every contender is a process with all cores and one batch in memory, in fp32 unless the case says bf16. Rounds
alternate, so that a change of the machine's speed affects all of them; a ratio is the median over rounds of (their
seconds / our seconds) in the same round. The contenders' modules say what differs between them. The perceptron is the
largest of MagmaDNN's Table 1: 4 layers of 528 units, sigmoid, batch 100, 600 steps an epoch.

    python -m lab.bench.steps [--cases resnet-fp32 'transformer-*' ...] [--rounds N] [--torch_python PYTHON]
        [--jax_python PYTHON] [--output FILE]

A case's row in the output file replaces the one of an earlier run; the other cases stay.
"""

import dataclasses
import fnmatch
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import gnmt.presets
import resnet.config
import ssd.presets
import transformer.config
import transformer.presets
import tsm_kinetics.presets
from common.config.digest import to_dict
from common.config.optimizer import Sgd
from common.config.rules import OPTIMIZERS
from common.config.schedule import Constant
from common.config.schema import RunConfig
from lab.bench.harness import scripts
from lab.bench.harness.rounds import OURS, command, compare
from lab.bench.harness.scripts import head, left_out, peers, write

EPOCH = 600  # The perceptron's steps.
OVERHEAD_BAR, OVERHEAD_BATCH, OVERHEAD_PIXELS, OVERHEAD_STEPS = 0.01, 32, 64, 5
Config = TypeVar("Config", bound=RunConfig)
Commands = dict[str, list[str]]


@dataclasses.dataclass(frozen=True)
class Case:
    """One network and its contenders.

    Attributes:
      title: name in the tables.
      table: the table it goes to, "training" or "small".
      unit: of the figure in the tables: "images/s" (`examples` / seconds of a step) or "s" (their product).
      examples: examples per step; steps, for a unit of seconds.
      steps: steps per round.
      commands: {contender: command of its process}.
      bars: {contender: minimum ratio of its seconds to ours}.
    """

    title: str
    table: str
    unit: str
    examples: float
    steps: int
    commands: Commands
    bars: Mapping[str, float] = dataclasses.field(default_factory=dict)


def on_one_replica(preset: Config, batch: int, precision: str = "fp32", **changes: Any) -> Config:
    """Returns a preset's network on one replica, with `batch` examples per batch and a constant rate."""
    return dataclasses.replace(
        preset,
        division="open",
        replicas="single",
        num_replicas=1,
        precision=precision,
        global_batch_size=batch,
        eval_batch_size=batch,
        schedule=Constant(warmup_epochs=0),
        **changes,
    )


def manifest(config: RunConfig, benchmark: str, **more: Any) -> str:
    """Returns what a contender needs to know as JSON: the keys of an export's manifest that contenders read."""
    content = {
        "benchmark": benchmark,
        "config": to_dict(config),
        "batch": {"train": config.global_batch_size},
    }
    return json.dumps({**content, "precision": config.precision, **more})


def _commands(peer: str, pythons: Mapping[str, str], content: str) -> Commands:
    """Returns the commands of ours and the peer in TensorFlow ("": none), and of PyTorch's if it has an interpreter."""
    calls = {name: command("tensorflow_networks", name, content) for name in (OURS, peer) if name}
    if "torch" in pythons:
        calls["torch"] = command("torch_step", content, python=pythons["torch"])
    return calls


def resnet_config(precision: str, batch: int, pixels: int) -> RunConfig:
    """Returns ResNet-50 on one replica, with SGD of momentum 0.9, label smoothing 0.1 and no weight decay."""
    return on_one_replica(
        resnet.config.Config(image_size=pixels, num_classes=1000),
        batch,
        precision,
        label_smoothing=0.1,
        num_train_examples=batch * 10_000,
        num_eval_examples=batch,
        optimizer=Sgd(base_learning_rate=0.01, momentum=0.9),
    )


def _resnet(precision: str, torch_bar: float, pythons: Mapping[str, str]) -> Case:
    content = manifest(resnet_config(precision, 16, 224), "resnet")
    calls = _commands("keras_fit", pythons, content)
    title = f"ResNet-50, 224 pixels, batch 16, {precision}"
    return Case(title, "training", "images/s", 16, 2, calls, {"keras_fit": 1.05, "torch": torch_bar})


def _ssd(pythons: Mapping[str, str]) -> Case:
    optimizer = Sgd(base_learning_rate=1e-3, momentum=0.9)
    changes = {"loss_scale": 1.0, "batch_norm_span": 0, "optimizer": optimizer}
    content = manifest(on_one_replica(ssd.presets.PRESETS["v100-8"], 8, **changes), "ssd")
    calls = _commands("keras_fit", pythons, content)
    bars = {"keras_fit": 1.05, "torch": 1.0}
    return Case("SSD-300, 8 images, fp32", "training", "images/s", 8, 1, calls, bars)


def _maskrcnn(pythons: Mapping[str, str]) -> Case:
    """One image as large as published; contenders/tensorflow_maskrcnn.py says what differs."""
    size = ("832", "1344")
    calls = {name: command("tensorflow_maskrcnn", name, "fp32", "1", *size) for name in (OURS, "official")}
    title = f"Mask R-CNN, one image of {'x'.join(size)}, fp32"
    return Case(title, "training", "s", 1, 1, calls, {"official": 1.0})


def _transformer(
    system: str, name: str, batch: int, length: int, steps: int, pythons: Mapping[str, str]
) -> Case:
    """The preset's network on one replica; its Adam updates every row of the embeddings, as the others' do."""
    preset = transformer.presets.PRESETS[system]
    adam = OPTIMIZERS.renamed(preset.optimizer, "adam")
    config = on_one_replica(
        preset,
        batch,
        packed_length=length,
        communication=dataclasses.replace(preset.communication, wire="full"),
        optimizer=dataclasses.replace(adam, base_learning_rate=1e-4),
        decode=transformer.config.Decode(source_length=length, extra_length=1),
    )
    calls = _commands("tf_models", pythons, manifest(config, "transformer"))
    title = f"Transformer {name}, {batch} x {length} tokens, fp32"
    return Case(title, "training", "s", 1, steps, calls, {"tf_models": 1.1})


def _gnmt(system: str, name: str, batch: int, length: int, steps: int, pythons: Mapping[str, str]) -> Case:
    """The preset's network on one replica, with one bucket."""
    preset = gnmt.presets.PRESETS[system]
    config = on_one_replica(
        preset,
        batch,
        loss_scale=1.0,
        max_sequence_length=length,
        bucket_limits=(length,),
        decode=dataclasses.replace(preset.decode, source_length=length, target_length=1),
    )
    calls = _commands("keras_tuned", pythons, manifest(config, "gnmt"))
    title = f"GNMT{name}, {batch} x {length} tokens, fp32"
    return Case(title, "training", "s", 1, steps, calls, {"keras_tuned": 1.1})


def _tsm(pythons: Mapping[str, str]) -> Case:
    changes = {"image_size": 224, "num_train_examples": 20_000, "num_eval_examples": 2}
    config = on_one_replica(tsm_kinetics.presets.PRESETS["summit-1"], 2, **changes)
    clips = {"name": "batch/frames", "shape": [2, config.frames, 224, 224, 3]}
    content = manifest(config, "tsm_kinetics", programs=[{"inputs": [clips]}])
    return Case(
        "TSM, batch 2, fp32", "training", "clips/s", 2, 1, _commands("", pythons, content), {"torch": 1.0}
    )


def _small(
    network: str,
    title: str,
    unit: str,
    examples: int,
    steps: int,
    bars: Mapping[str, float],
    pythons: Mapping[str, str],
) -> Case:
    calls = {name: command("tensorflow_small", name, network) for name in (OURS, "keras_fit")}
    modules = {"torch": ["torch_small", network]}
    if network == "mlp":
        modules["jax"] = ["jax_perceptron"]
    calls |= {n: command(*modules[n], python=pythons[n]) for n in modules.keys() & pythons.keys()}
    return Case(f"{title}, fp32", "small", unit, examples, steps, calls, bars)


_LSTM = {"keras_fit": 1.1, "torch": 1.0}
CASES: dict[str, Callable[[Mapping[str, str]], Case]] = {
    "resnet-fp32": partial(_resnet, "fp32", 1.2),
    "resnet-bf16": partial(_resnet, "bf16", 1.1),
    "transformer-big": partial(_transformer, "tpu-v3-32", "big", 4, 64, 1),
    "transformer-multi30k": partial(_transformer, "cpu-multi30k", "of `cpu-multi30k`", 32, 128, 2),
    "gnmt-full": partial(_gnmt, "v100-8", "", 8, 30, 1),
    "gnmt-multi30k": partial(_gnmt, "cpu-multi30k", " of `cpu-multi30k`", 128, 16, 2),
    "ssd": _ssd,
    "tsm": _tsm,
    "maskrcnn": _maskrcnn,
    "mnist-lstm": partial(_small, "mnist", "MNIST LSTM, batch 128", "images/s", 128, 200, _LSTM),
    "ptb-lstm": partial(_small, "ptb", "PTB LSTM, 20 streams of 20 words", "words/s", 400, 100, _LSTM),
    "perceptron": partial(
        *(
            _small,
            "mlp",
            "MNIST perceptron, 4 layers, batch 100",
            "s an epoch",
            EPOCH,
            EPOCH,
            {"jax": 1 / 1.05},
        )
    ),
}


def measure(case: Case, rounds: int) -> dict[str, Any]:
    """Returns a case's contenders, with seconds per step, ratios to ours, and the minimum ratios.

    Raises SystemExit if a contender's parameter count differs from ours by over 0.5 % (biases may be stored otherwise).
    """
    rows = compare(case.commands, case.steps, rounds)
    our_parameters = rows[OURS].get("parameters")
    for name, row in rows.items():
        if our_parameters and abs(row["parameters"] / our_parameters - 1) > 5e-3:
            sys.exit(
                f"{name}: {row['parameters']} parameters, ours has {our_parameters}: not the same network"
            )
        row["seconds"] /= case.steps
        row["rounds_seconds"] = [round(t / case.steps, 6) for t in row["rounds_seconds"]]
    for name in rows.keys() & case.bars.keys():
        rows[name]["bar"] = case.bars[name]
    about = {key: getattr(case, key) for key in ("title", "table", "unit", "examples")}
    return {**about, "steps": case.steps, "rounds": rounds, **head(), "contenders": rows}


def overhead(rounds: int) -> dict[str, Any]:
    """Measures what the fused loop adds to a step of ResNet-50 that Python calls on a batch in memory."""
    import tensorflow as tf

    from common.distributed import replicas
    from common.train.programs import Programs
    from resnet.task import Task

    config = resnet_config("fp32", OVERHEAD_BATCH, OVERHEAD_PIXELS)
    loop = Programs(Task(config, None), replicas.make(config))
    loop.compile()
    train, evaluation = loop.synthetic(True), loop.synthetic(False)
    resident = next(train)
    step = tf.function(
        lambda: loop.replicas.run(loop.block._train_step, (resident, loop.state.step.read_value())),
        autograph=False,
    )
    times: dict[str, list[float]] = {"step": [], "fused_loop": []}
    for i in range(rounds + 1):
        began = time.perf_counter()
        for _ in range(OVERHEAD_STEPS):
            step().numpy()
        middle = time.perf_counter()
        loop.call(train, evaluation, OVERHEAD_STEPS, 0)
        end = time.perf_counter()
        if i:  # The first round traces.
            times["step"].append((middle - began) / OVERHEAD_STEPS)
            times["fused_loop"].append((end - middle) / OVERHEAD_STEPS)
    medians = {name: statistics.median(values) for name, values in times.items()}
    added = medians["fused_loop"] / medians["step"] - 1
    return {**medians, "overhead": added, "bar": OVERHEAD_BAR, **head()}


def say(name: str, case: Mapping[str, Any]) -> None:
    """Prints a case's contenders."""
    for who, row in case["contenders"].items():
        verdict = ""
        if bar := row.get("bar"):
            verdict = f" (bar {bar:.2f}: {'met' if row['ratio_to_ours'] >= bar else 'missed'})"
        times = f"{1e3 * row['seconds']:9.2f} ms/step, {row['ratio_to_ours']:.3f} x ours"
        print(f"{name} {who:16} {times}{verdict}", flush=True)


def main() -> None:
    parser = scripts.parser(__doc__, "steps.json", rounds=5)
    parser.add_argument(
        "--cases", nargs="+", default=["*"], help=f"patterns of {', '.join(CASES)}, fused-loop"
    )
    parser.add_argument("--torch_python", help="an interpreter that has it; else PyTorch is left out")
    parser.add_argument("--jax_python", help="an interpreter that has jax; without it JAX is left out")
    options = parser.parse_args()

    def matches(name: str) -> bool:
        return any(fnmatch.fnmatch(name, pattern) for pattern in options.cases)

    if not any(map(matches, (*CASES, "fused-loop"))):
        parser.error(f"--cases={' '.join(options.cases)}: no such case; there are {', '.join(CASES)}")
    pythons = peers(options.torch_python, options.jax_python)
    left_out(pythons, ("torch", "jax"))
    result = json.loads(options.output.read_text()) if options.output.is_file() else {"cases": {}}
    for name in filter(matches, CASES):
        result["cases"][name] = measure(CASES[name](pythons), options.rounds)
        say(name, result["cases"][name])
        write(result, options.output)
    if matches("fused-loop"):
        result["fused_loop"] = overhead(options.rounds)
        print(f"fused loop: {result['fused_loop']['overhead']:+.2%} of a step (bar {OVERHEAD_BAR:.0%})")
        write(result, options.output)


if __name__ == "__main__":
    main()
