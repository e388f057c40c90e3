"""LSTMs at GNMT's sizes: does hoisting the input projection pay, and GNMT's training step against Keras and PyTorch.

A layer has 1,024 units over inputs of 1,024 and 2,048. It runs forward and backward, at small batches and the shortest
and longest bucket. The forms are ours hoisted, ours plain (common/layers/lstm.py), Keras's LSTM with and without
unrolling, and PyTorch's. Then the script measures GNMT's whole training step: "full" is the benchmark's network with
few sentences, "multi30k" the preset cpu-multi30k. fp32, all cores. Rounds alternate. The result is the median over
rounds of (their seconds / our seconds) in the same round.

    python -m lab.bench.lstm [--parts layer gnmt] [--inputs 1024 2048] [--batches 1 8 32 128] [--lengths 10 48]
        [--cases full multi30k] [--rounds N] [--torch-python PYTHON] [--quick]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import Any

from gnmt.config import Config
from gnmt.presets import PRESETS
from lab.bench.harness import arguments
from lab.bench.harness.interpreters import peers
from lab.bench.harness.results import write
from lab.bench.harness.steps import (
    Case,
    about,
    commands,
    judged,
    manifest,
    measure,
    measure_case,
    on_one_replica,
)

MODULE, TORCH_MODULE = "tensorflow_lstm", "torch_translation"
LAYERS = ("ours", "plain", "keras", "keras_unrolled")
NETWORKS = ("ours", "plain", "keras_fit", "keras_tuned")
PLAIN = "plain"  # Ours without hoisting; not a peer.
PAYS = 1.05  # Hoisting pays if the plain form takes this many times as long; less is noise.
# Steps per round; short steps get more of them.
ROUND_TOKENS, MOST_STEPS = 4000, 20
CASES = {
    "full": Case("v100-8", 8, 30, 1, in_pairs=True),
    "multi30k": Case("cpu-multi30k", 128, 16, 2),
    "tiny": Case("cpu-tiny", 2, 4, 1),  # --quick: checks that everything runs.
}


def config_of(case: Case) -> Config:
    """Returns the preset's network on one replica, with one bucket."""
    preset = PRESETS[case.preset]
    return on_one_replica(
        preset,
        case.batch,
        loss_scale=1.0,
        max_sequence_length=case.length,
        bucket_limits=(case.length,),
        decode=dataclasses.replace(preset.decode, source_length=case.length, target_length=1),
    )


Part = Iterator[tuple[str, dict[str, Any]]]  # Name and rows of a case.


def layers(options: argparse.Namespace, python: str | None) -> Part:
    """Measures one layer in every shape."""
    for inputs in options.inputs:
        for length in options.lengths:
            for batch in options.batches:
                name = f"inputs {inputs}, length {length}, batch {batch}"
                shape = [length, batch, inputs, options.units]
                calls = commands(MODULE, LAYERS, TORCH_MODULE, python, "layer", json.dumps(shape))
                steps = min(MOST_STEPS, max(1, ROUND_TOKENS // (batch * length)))
                rows = measure(calls, steps, options.rounds)
                yield name, _with_plain({"steps": steps, **judged(name, rows, [PLAIN])})


def networks(options: argparse.Namespace, python: str | None) -> Part:
    """Measures GNMT's training step."""
    for name in options.cases:
        case = CASES[name]
        told = manifest(config_of(case))
        calls = commands(MODULE, NETWORKS, TORCH_MODULE, python, "gnmt", told)
        yield name, _with_plain(measure_case(f"gnmt {name}", case, calls, options.rounds, [PLAIN]))


def _with_plain(found: dict[str, Any]) -> dict[str, Any]:
    """Adds to a case the ratio of the plain form's time to the hoisted one's."""
    return {**found, "plain_over_hoisted": found["contenders"][PLAIN]["ratio_to_ours"]}


def hoisting(cases: Mapping[str, Mapping[str, Any]]) -> dict[str, list[str]]:
    """Lists where hoisting pays, makes no difference, and costs."""
    found: dict[str, list[str]] = {"pays": [], "even": [], "costs": []}
    for name, case in cases.items():
        ratio = case["plain_over_hoisted"]
        kind = "pays" if ratio >= PAYS else "costs" if ratio <= 1 / PAYS else "even"
        found[kind].append(f"{name}: {ratio:.2f}x")
    return found


def main() -> None:
    parser = arguments.parser(__doc__, "", rounds=5)
    parser.add_argument("--parts", nargs="+", default=["layer", "gnmt"], choices=["layer", "gnmt"])
    parser.add_argument("--inputs", type=int, nargs="+", default=[1024, 2048])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32, 128])
    parser.add_argument("--lengths", type=int, nargs="+", default=[10, 48])
    parser.add_argument("--cases", nargs="+", default=["full", "multi30k"], choices=list(CASES))
    arguments.add_torch_python(parser)
    arguments.add_quick(parser)
    options = parser.parse_args()
    options.units = 1024
    if options.quick:
        options.inputs, options.batches, options.lengths, options.units = [16], [2], [4], 16
        options.rounds, options.cases = 1, ["tiny"]
    python = peers(options.torch_python).get("torch")
    for part in options.parts:
        result = about(python, rounds=options.rounds, units=options.units, hoisting_pays_from=PAYS)
        cases = result["cases"] = {}
        for name, found in {"layer": layers, "gnmt": networks}[part](options, python):
            cases[name] = found
            result["hoisting"] = hoisting(cases)
            if not options.quick:
                write(result, options.output / f"lstm_{part}.json")
        for kind, names in result["hoisting"].items():
            print(f"{part}: hoisting {kind}: {'; '.join(names) or 'nowhere'}", flush=True)


if __name__ == "__main__":
    main()
