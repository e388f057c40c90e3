"""Writes docs/prediction.md and docs/prediction-method.md; a test compares the pages with the code."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from systems.predict import (
    chips,
    collectives,
    convergence,
    document_law,
    document_programs,
    figure10,
    fitting,
    kernel_costs,
    measured,
    model,
    published,
)
from systems.predict.answer import Answer
from systems.predict.document_programs import table as _table
from systems.predict.fitting import Test

ROOT = Path(__file__).resolve().parents[2]
# The pages and the texts that they are made of: what people quote, and the method behind it.
PAGES = {
    ROOT / f"docs/{name}.md": Path(__file__).parent / f"data/{name}.md.in"
    for name in ("prediction", "prediction-method")
}
BENCHMARKS = ("resnet", "ssd", "maskrcnn", "transformer", "gnmt")
NAMES = ("time at the published epochs", "epochs", "epochs, without that batch", "together")
GOAL = (0.15, 0.40)  # Targets for the median and 90th percentile of each of NAMES.


def write(answer: Answer, examples: Sequence[Sequence[object]]) -> None:
    """Writes the pages and their pictures; arguments as in `tables`."""
    from systems.predict import plot

    for path, text in render(answer, examples).items():
        path.write_text(text, encoding="utf-8")
    plot.figures(ROOT / "docs/prediction-figures.png")
    plot.scatter(ROOT / "docs/prediction-scores.png")
    plot.families(ROOT / "docs/prediction-families.png")


def render(answer: Answer, examples: Sequence[Sequence[object]]) -> dict[Path, str]:
    """Renders the pages: fills in the {tables} of their texts; arguments as in `tables`."""
    found = tables(answer, examples)
    pages = {}
    for path, source in PAGES.items():
        text = source.read_text(encoding="utf-8")
        for name, table in found.items():
            text = text.replace("{" + name + "}", table)
        pages[path] = text
    return pages


def tables(answer: Answer, examples: Sequence[Sequence[object]]) -> dict[str, str]:
    """The tables by name.

    Args:
      answer: the prediction for TSM's preset on Summit.
      examples: rows (command's words, minutes, nine of ten, published, USD, kWh) of forecasts.
    """
    descriptions, fine = document_law.known()
    head = ("`timetotrain forecast`", "minutes", "nine of ten", "published", "USD", "kWh")
    return {
        "examples": _table(head, examples),
        "law_errors": document_law.errors(),
        "law_benchmarks": document_law.by_benchmark(),
        "law_constants": document_law.constants(),
        "tpu_v4": document_law.tpu_v4(),
        "measured_steps": document_law.steps(),
        "worst_step": _worst(""),
        "worst_totals": _worst("steps"),
        "worst_kernels": _worst("kernels"),
        "power_errors": "half within {:.0%}, all within {:.0%}".format(*document_law.power_errors()),
        "power": document_law.power(),
        "accelerators": document_law.accelerators(),
        "chips": str(len(chips.chips())),
        "looked_up": document_law.looked_up(),
        "descriptions": f"{descriptions:,}",
        "forecast": f"{fine:,}",
        "missing": str(descriptions - fine),
        "program_constants": document_programs.constants(),
        "program_errors": document_programs.errors(),
        "program_rows": document_programs.rows(),
        "program_largest": document_programs.largest(),
        "program_periods": document_programs.periods(),
        "program_starts": document_programs.starts(),
        "constants": constants(),
        "errors": errors(),
        "points": points(),
        "curves": curves(),
        "kinetics": kinetics(),
        "pods": pods(),
        "bytes": wire(),
        "networks": networks(),
        "transformers": transformers(),
        "kinetics_totals": kinetics_totals(answer),
        "shared": str(fitting.shared(fitting.committed_tests())),
    }


def _worst(form: str) -> str:
    """The largest error of a measured step that is left out, by a form of measured.left_out."""
    return f"{max(map(abs, measured.left_out(form).values())):.1%}"


def constants() -> str:
    rows = []
    for family in fitting.FAMILIES:
        c = fitting.constants(family)
        rows.append(
            (family, f"{c.matrix:.3f}", f"{c.memory:.3f}", f"{1e6 * c.launch:.2f}", f"{c.turnaround:.2f}")
        )
    head = ("family", "`matrix`, of peak", "`memory`, of bandwidth", "`launch`, us", "`turnaround`, s")
    return _table(head, rows)


def errors() -> str:
    tests = fitting.committed_tests()
    groups: list[tuple[str, list[Test]]] = [("**all**", tests)]
    groups += [(family, [t for t in tests if t.row.family == family]) for family in fitting.FAMILIES]
    groups += [(name, [t for t in tests if t.row.benchmark == name]) for name in BENCHMARKS]
    rows = []
    for name, chosen in groups:
        found = fitting.summary(chosen)
        pairs = (found["seconds"], found["epochs"], fitting.stricter(chosen), found["together"])
        cells = [f"{median:.1%} / {most:.1%}" for median, most in pairs]
        rows.append((name, len(chosen), *cells, verdict(pairs)))
    return _table(("rows", "number", *NAMES, "goals"), rows)


def verdict(pairs: Sequence[tuple[float, float]]) -> str:
    """Says which columns of NAMES miss which of GOAL's two numbers."""
    missed = []
    for name, pair in zip(("time", "epochs", "epochs without the batch", "together"), pairs, strict=True):
        over = [what for what, got, goal in zip(("median", "90th"), pair, GOAL, strict=True) if got > goal]
        missed += [f"{name} ({' and '.join(over)})"] if over else []
    return "**missed**: " + ", ".join(missed) if missed else "met"


def transformers() -> str:
    """Says which Transformer rows are predicted too slow and which too fast, at their published epochs."""
    tests = [t for t in fitting.committed_tests() if t.row.benchmark == "transformer"]
    slow = sorted(t.errors[0] for t in tests if t.errors[0] >= 0.095)
    fast = [t for t in tests if t.errors[0] <= -0.095]
    text = f"{len(slow)} of {len(tests)} rows are predicted {slow[0]:.0%} to {slow[-1]:.0%} too slow"
    names = " and ".join(f"`{t.row.system}` {-t.errors[0]:.0%}" for t in fast)
    return f"{text}, {len(tests) - len(slow) - len(fast)} within 10 %, {len(fast)} too fast ({names})"


def kinetics_totals(answer: Answer) -> str:
    """The prediction for a preset, with all its evaluations and with only one."""
    work, run = answer.work, answer.run
    once = dataclasses.replace(work, first_evaluation=run.epochs, evaluation_every=run.epochs)
    one = model.run(once, answer.machine, answer.constants, run.epochs)
    return (
        f"{_clock(run.total)} in all with the preset's {run.evaluations} evaluations, {_clock(one.total)} with "
        f"{one.evaluations}, of which the training steps are {_clock(run.training)}"
    )


def points() -> str:
    rows = []
    for test in fitting.committed_tests():
        row = test.row
        time, epochs, together = (f"{error:+.0%}" for error in test.errors)
        rows.append(
            (
                row.round,
                row.system,
                row.benchmark,
                row.accelerators,
                f"{row.batch:.0f}",
                f"{row.seconds / 60:.2f}",
                f"{test.together / 60:.2f}",
                f"{row.epochs:.1f}",
                f"{test.epochs:.1f}",
                time,
                epochs,
                together,
            )
        )
    head = ("round", "system", "benchmark", "accelerators", "batch", "minutes published", "predicted")
    return _table((*head, "epochs published", "predicted", "time", "epochs", "together"), rows)


def curves() -> str:
    rows = []
    for name in BENCHMARKS:
        for recipe in ("v0.6", "v0.7"):
            curve = convergence.curve(name, recipe)
            critical = f"{curve.critical:,.0f}" if curve.critical != float("inf") else "none"
            seen = f"{curve.batches[0]:g} to {curve.batches[1]:g}"
            rows.append(
                (name, recipe, curve.points, seen, f"{curve.least:.2f}", critical, f"{curve.deviation:.1%}")
            )
    head = (
        "benchmark",
        "recipe",
        "points",
        "batches",
        "`least`, epochs",
        "`critical`, examples",
        "deviation",
    )
    return _table(head, rows)


def kinetics() -> str:
    rows = []
    values = fitting.constants("v100")
    for nodes, batch, seconds in published.KINETICS:
        run = model.run(
            published.kinetics_workload(nodes, batch), published.kinetics_machine(nodes), values, 100
        )
        error = f"{run.training / seconds - 1:+.0%}"
        rows.append((nodes, batch, _clock(seconds), _clock(run.training), error, _clock(run.total)))
    text = _table(
        ("nodes", "clips", "published", "training steps", "error", "with an evaluation (10 clips)"), rows
    )
    facts = figure10.kinetics()
    return text + "\n\n" + _table(("quantity", "paper", "model"), facts)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} m" if hours else f"{minutes} m {rest:02} s"


def pods() -> str:
    return _table(("quantity", "paper", "model"), figure10.pods())


def wire() -> str:
    """Bytes that a replica sends to sum ResNet-50's gradients: measured (lab/bench/scaling.py) and modelled."""
    measured = json.loads((ROOT / "lab/bench/results/scaling.json").read_text(encoding="utf-8"))["exchange"]
    elements = kernel_costs.load("resnet50").parameters
    rows = []
    for place, variants in measured.items():
        replicas = int(place.split(", ")[1])
        for name, found in variants.items():
            counted = found["bytes_inside"] + found["bytes_across"]
            moved = exchange(name, elements, replicas)
            rows.append((place, name, f"{counted / 1e6:.1f}", f"{(moved.inside + moved.across) / 1e6:.1f}"))
    return _table(("backend, processes", "variant", "MB counted", "MB of the model"), rows)


def exchange(variant: str, elements: int, replicas: int) -> collectives.Moved:
    """The modelled bytes of a variant in lab/bench/scaling.py: rows of two for two-stage variants."""
    wire_bytes = 2 if "bf16" in variant else 4
    back = 4 if "sharded" in variant else wire_bytes
    row = 2 if variant in ("hierarchical", "2d") else replicas
    return collectives.bytes_moved(elements, replicas, row, wire_bytes, back)


def networks() -> str:
    rows = []
    for name in kernel_costs.known():
        net = kernel_costs.load(name)
        batch = 64
        mega = (net.train.bytes(2 * batch) - net.train.bytes(batch)) / batch / 1e6
        rows.append(
            (
                name,
                f"{net.parameters / 1e6:.1f}",
                f"{net.forward.flops_per_example / 1e9:.2f}",
                f"{net.train.flops_per_example / 1e9:.2f}",
                f"{mega:.0f}",
                f"{net.train.count.sum():.0f}",
                net.source,
            )
        )
    head = ("network", "M parameters", "GFLOP forward", "GFLOP step", "MB an example", "kernels", "source")
    return _table(head, rows)
