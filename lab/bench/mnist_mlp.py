"""MagmaDNN's figure 3 and Table 1: seconds per epoch of its perceptron over the number of hidden layers.

Layers have 528 units and sigmoid; batch 100, 600 steps per epoch, data in memory. Compares our fused loop, Keras `fit`,
PyTorch and JAX, with medians of alternating rounds and the slope per layer.

    python -m lab.bench.mnist_mlp [--layers 1 2 ...] [--rounds N] [--quick]
        [--torch-python PYTHON] [--jax-python PYTHON]
"""

from __future__ import annotations

from typing import Any

from lab.bench.harness import arguments
from lab.bench.harness.interpreters import left_out, peers
from lab.bench.harness.results import head, write
from lab.bench.harness.rounds import command, compare

STEPS = 600  # Per epoch.
# Maximum ratio of ours to the fastest peer, at 1 to 4 layers (the paper's range).
BAR, BAR_LAYERS = 1.05, 4
PEERS = ("torch", "jax")  # Peers besides Keras, which is always there.


def slope(seconds: dict[int, float]) -> float:
    """Returns the seconds per epoch that a layer adds, by least squares."""
    mean_x, mean_y = sum(seconds) / len(seconds), sum(seconds.values()) / len(seconds)
    spread = sum((x - mean_x) ** 2 for x in seconds)
    return sum((x - mean_x) * (y - mean_y) for x, y in seconds.items()) / spread if spread else 0.0


def verdict(layers: int, rows: dict[str, dict], missing: list[str]) -> dict[str, Any]:
    """Returns the fastest peer's seconds over ours, and whether ours meets the bar; None if not measured."""
    if missing:
        return {"fastest_peer_over_ours": None, "meets_bar": None}
    fastest = min(row["ratio_to_ours"] for name, row in rows.items() if name != "ours")
    return {
        "fastest_peer_over_ours": fastest,
        "meets_bar": fastest >= 1 / BAR if layers <= BAR_LAYERS else None,
    }


def commands(layers: int, interpreters: dict[str, str]) -> dict[str, list[str]]:
    """Returns the commands of all contenders; a peer needs an interpreter."""
    modules = {"torch": ["torch_small", "mlp"], "jax": ["jax_perceptron"]}
    ours = {name: command("tensorflow_small", name, "mlp", str(layers)) for name in ("ours", "keras_fit")}
    others = {
        name: command(*modules[name], str(layers), python=python) for name, python in interpreters.items()
    }
    return ours | others


def main() -> None:
    parser = arguments.parser(__doc__, "mnist_mlp.json", rounds=5)
    parser.add_argument("--layers", type=int, nargs="+", default=list(range(1, 9)))
    arguments.add_torch_python(parser)
    parser.add_argument("--jax-python", help="an interpreter that has jax; without it JAX is left out")
    arguments.add_quick(parser)
    options = parser.parse_args()
    rounds, steps = (1, 60) if options.quick else (options.rounds, STEPS)
    interpreters = peers(options.torch_python, options.jax_python)
    missing = left_out(interpreters, PEERS)
    result: dict[str, Any] = {
        **head(),
        "settings": {"rounds": rounds, "steps": steps, "bar": BAR, "bar_layers": BAR_LAYERS},
        "missing_peers": missing,
        "layers": {},
    }
    for layers in options.layers:
        rows = compare(commands(layers, interpreters), steps, rounds)
        judged = verdict(layers, rows, missing)
        result["layers"][layers] = {**rows, **judged}
        figures = ", ".join(f"{name} {row['seconds']:.3f} s" for name, row in rows.items())
        fastest = judged["fastest_peer_over_ours"]
        said = "no verdict" if fastest is None else f"fastest peer {fastest:.3f} x ours"
        print(f"{layers} layers: {figures}; {said}", flush=True)
    if len(options.layers) > 1:
        result["seconds_per_layer"] = {
            name: slope({n: rows[name]["seconds"] for n, rows in result["layers"].items()})
            for name in ("ours", "keras_fit", *interpreters)
        }
        print("seconds per layer:", {k: round(v, 4) for k, v in result["seconds_per_layer"].items()})
    if not options.quick:
        write(result, options.output)


if __name__ == "__main__":
    main()
