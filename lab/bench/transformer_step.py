"""The Transformer's training step against the same network in Keras, tf-models-official and PyTorch.

"big" has the benchmark's network with its full vocabulary (210.8 million weights), but few tokens; "multi30k" is the
preset cpu-multi30k. One replica, all cores, fp32, Adam, dropout, label smoothing; contenders/tensorflow_transformer.py
says what differs. Rounds alternate. The result is the median over rounds of (their seconds / our seconds) in the same
round.

    python -m lab.bench.transformer_step [--cases big multi30k] [--batch N --length N] [--rounds N] [--steps N]
        [--torch-python PYTHON] [--quick]

In "big" each contender runs only with ours: all five together would need 25 GB.
"""

from __future__ import annotations

import dataclasses

from lab.bench.harness import arguments
from lab.bench.harness.interpreters import peers
from lab.bench.harness.results import write
from lab.bench.harness.steps import Case, about, commands, manifest, measure_case, on_one_replica
from transformer.config import Config, Decode
from transformer.presets import PRESETS

NAMES = ("ours", "keras_fit", "keras_fused_adam", "tf_models")
CASES = {
    "big": Case("tpu-v3-32", 4, 64, 1, in_pairs=True),
    "multi30k": Case("cpu-multi30k", 32, 128, 2),
    "tiny": Case("cpu-tiny", 2, 16, 1),  # --quick: checks that everything runs.
}


def config_of(case: Case) -> Config:
    """Returns the preset's network on one replica; its Adam updates every row of the embeddings, as the others' do."""
    preset = PRESETS[case.preset]
    return on_one_replica(
        preset,
        case.batch,
        packed_length=case.length,
        communication=dataclasses.replace(preset.communication, wire="full"),
        optimizer=dataclasses.replace(preset.optimizer, name="adam", base_learning_rate=1e-4),
        decode=Decode(source_length=case.length, extra_length=1),
    )


def main() -> None:
    parser = arguments.parser(__doc__, "transformer_step.json", rounds=5)
    parser.add_argument("--cases", nargs="+", default=["big", "multi30k"], choices=list(CASES))
    parser.add_argument("--batch", type=int, help="sequences of a step, in place of the case's")
    parser.add_argument("--length", type=int, help="tokens of a sequence, in place of the case's")
    parser.add_argument("--steps", type=int, help="training steps per contender and round")
    arguments.add_torch_python(parser)
    arguments.add_quick(parser)
    options = parser.parse_args()
    python = peers(options.torch_python).get("torch")
    rounds, names = (1, ["tiny"]) if options.quick else (options.rounds, options.cases)
    result = {**about(python, rounds=rounds), "cases": {}}
    for name in names:
        given = {key: getattr(options, key) for key in ("batch", "length", "steps") if getattr(options, key)}
        case = CASES[name]._replace(**given)
        told = ("transformer", manifest(config_of(case)))
        calls = commands("tensorflow_transformer", NAMES, "torch_translation", python, *told)
        result["cases"][name] = measure_case(name, case, calls, rounds)
        if not options.quick:
            write(result, options.output)


if __name__ == "__main__":
    main()
