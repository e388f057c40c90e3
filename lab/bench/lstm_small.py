"""Training throughput of LEGW's two LSTMs: the row reader of MNIST and the language model of the Penn Treebank.

Compares our fused loop, Keras `fit` and PyTorch at the base batches (128 images; 20 streams of 20 words) in fp32, with
medians of alternating rounds. On MNIST ours premultiplies the transform's matrix and the LSTM's first one; users of the
others could do so by hand. `ours_unfolded` does not premultiply.

    python -m lab.bench.lstm_small [--networks mnist ptb] [--rounds N] [--torch-python PYTHON] [--quick]
"""

from __future__ import annotations

from typing import Any

from lab.bench.harness import arguments
from lab.bench.harness.interpreters import left_out, peers
from lab.bench.harness.results import head, write
from lab.bench.harness.rounds import command, compare

# Training examples per step, and steps per round.
EXAMPLES = {"mnist": (128, "images"), "ptb": (20 * 20, "words")}
STEPS = {"mnist": 200, "ptb": 100}
BARS = {"keras_fit": 1.1, "torch": 1.0}  # Minimum ratios of their seconds to ours.


def meets_bars(rows: dict[str, dict], missing: list[str]) -> bool | None:
    """Whether every peer's ratio to our seconds reaches its bar; None if a peer was left out."""
    return None if missing else all(rows[name]["ratio_to_ours"] >= bar for name, bar in BARS.items())


def main() -> None:
    parser = arguments.parser(__doc__, "lstm_small.json", rounds=5)
    parser.add_argument("--networks", nargs="+", default=list(EXAMPLES), choices=list(EXAMPLES))
    arguments.add_torch_python(parser)
    arguments.add_quick(parser)
    options = parser.parse_args()
    rounds = 1 if options.quick else options.rounds
    interpreters = peers(options.torch_python)
    missing = left_out(interpreters, ["torch"])
    result: dict[str, Any] = {
        **head(),
        "settings": {"rounds": rounds, "steps": STEPS, "bars": BARS},
        "missing_peers": missing,
        "networks": {},
        "meets_bars": {},
    }
    for network in options.networks:
        names = ("ours", "ours_unfolded", "keras_fit") if network == "mnist" else ("ours", "keras_fit")
        commands = {name: command("tensorflow_small", name, network, "0") for name in names}
        for name, python in interpreters.items():
            commands[name] = command("torch_small", network, "0", python=python)
        steps = 20 if options.quick else STEPS[network]
        rows = compare(commands, steps, rounds)
        examples, unit = EXAMPLES[network]
        for name, row in rows.items():
            row |= {f"{unit}_per_second": examples * steps / row["seconds"], "bar": BARS.get(name)}
            speed = f"{1e3 * row['seconds'] / steps:.1f} ms/step, {row[f'{unit}_per_second']:.0f} {unit}/s"
            print(
                f"{network} {name:13} {speed}, {row['ratio_to_ours']:.3f} x ours (bar {row['bar']})",
                flush=True,
            )
        result["networks"][network] = rows
        result["meets_bars"][network] = meets_bars(rows, missing)
    if not options.quick:
        write(result, options.output)


if __name__ == "__main__":
    main()
