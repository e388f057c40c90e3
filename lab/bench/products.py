"""The perceptron's matrix products alone, on all cores: TensorFlow's against JAX's.

python -m lab.bench.products [--rounds N] [--steps N] [--jax-python PYTHON] [--quick] [--output FILE]
"""

from __future__ import annotations

from lab.bench.harness import arguments
from lab.bench.harness.interpreters import left_out, peers
from lab.bench.harness.results import head, write
from lab.bench.harness.rounds import OURS, command, compare

# The perceptron of mnist_mlp.py: a layer's forward product and its weights' gradient, then another layer's.
SHAPES = ("100x784x528", "784x100x528", "100x528x528", "528x100x528")


def main() -> None:
    parser = arguments.parser(__doc__, "products.json", rounds=3)
    parser.add_argument("--steps", type=int, default=200, help="of a round; default: 200")
    parser.add_argument("--jax-python", help="an interpreter that has jax; without it JAX is left out")
    arguments.add_quick(parser)
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.steps = 1, 5
    jax_python = peers(None, options.jax_python).get("jax")
    left_out({"jax": jax_python} if jax_python else {}, ["jax"], decisive=False)
    result = {**head(), "settings": {"rounds": options.rounds, "steps": options.steps}, "products": {}}
    for shape in SHAPES:
        called = {OURS: command("tensorflow_products", "fp32", shape)}
        if jax_python:
            called["jax"] = command("jax_products", "fp32", shape, python=jax_python)
        rows = compare(called, options.steps, options.rounds)
        result["products"][shape] = rows
        texts = (f"{n} {1e3 * r['seconds']:.1f} ms, {r['ratio_to_ours']:.2f} x ours" for n, r in rows.items())
        print(shape, *texts, sep="; ", flush=True)
    if not options.quick:
        write(result, options.output)


if __name__ == "__main__":
    main()
