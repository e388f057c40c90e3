"""The Transformer's training step beside the same network in Keras, tf-models-official and PyTorch.

"big" has the benchmark's network, vocabulary and all (210.8 million weights), with few tokens; "multi30k" is the preset
cpu-multi30k. One replica, all cores, fp32, Adam, dropout, smoothed labels; `_transformer_contenders.py` says what
differs. Rounds alternate; what counts is the median over rounds of (their seconds / our seconds) in the same round.

    python bench/transformer_step.py [--cases big multi30k] [--batch N --length N] [--rounds N] [--steps N]
        [--torch-python PYTHON] [--quick]

In "big" each contender runs with ours alone: five of them would need 25 GB.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path

from _rounds import ROOT, peers, write
from _steps import Case, about, commands, measure, report, verdict

sys.path.insert(0, str(ROOT))

from common.config.digest import to_dict  # noqa: E402
from common.config.schema import Schedule  # noqa: E402
from transformer.config import Config, Decode  # noqa: E402
from transformer.presets import PRESETS  # noqa: E402

NAMES = ("ours", "keras_fit", "keras_fused_adam", "tf_models")


CASES = {
    "big": Case("tpu-v3-32", 4, 64, 1, in_pairs=True),
    "multi30k": Case("cpu-multi30k", 32, 128, 2),
    "tiny": Case("cpu-tiny", 2, 16, 1),  # --quick: that everything runs.
}


def config_of(case: Case) -> Config:
    """The preset's network on one replica; its Adam updates every row of the embeddings, as the others' do."""
    preset = PRESETS[case.preset]
    return dataclasses.replace(
        preset,
        division="open",
        replicas="single",
        num_replicas=1,
        precision="fp32",
        global_batch_size=case.batch,
        eval_batch_size=case.batch,
        packed_length=case.length,
        communication=dataclasses.replace(preset.communication, wire="full"),
        optimizer=dataclasses.replace(preset.optimizer, name="adam", base_learning_rate=1e-4),
        schedule=Schedule(kind="constant", warmup_epochs=0),
        decode=Decode(source_length=case.length, extra_length=1),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", nargs="+", default=["big", "multi30k"], choices=list(CASES))
    parser.add_argument("--batch", type=int, help="sequences of a step, in place of the case's")
    parser.add_argument("--length", type=int, help="tokens of a sequence, in place of the case's")
    parser.add_argument("--steps", type=int, help="training steps per contender and round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--torch-python", help="an interpreter that has torch==2.13.0; without it PyTorch is left out"
    )
    parser.add_argument("--quick", action="store_true", help="one tiny round, to see that everything runs")
    parser.add_argument("--output", type=Path, default=ROOT / "bench" / "results" / "transformer_step.json")
    options = parser.parse_args()
    python = peers(options.torch_python).get("torch")
    rounds, names = (1, ["tiny"]) if options.quick else (options.rounds, options.cases)
    result = {**about(python, rounds=rounds), "cases": {}}
    for name in names:
        given = {key: getattr(options, key) for key in ("batch", "length", "steps") if getattr(options, key)}
        case = CASES[name]._replace(**given)
        manifest = json.dumps({"config": to_dict(config_of(case)), "batch": {"train": case.batch}})
        calls = commands("_transformer_contenders.py", NAMES, python, "transformer", manifest)
        rows = measure(calls, case.steps, rounds, case.in_pairs)
        found = verdict(rows)
        report(name, rows, found)
        tokens = case.batch * case.length
        for row in rows.values():
            row["target_tokens_per_second"] = tokens / row["seconds"]
        result["cases"][name] = {"settings": case._asdict(), "contenders": rows, **found}
        if not options.quick:
            write(result, options.output)


if __name__ == "__main__":
    main()
