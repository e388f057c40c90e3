"""python -m systems.predict fit | docs: maintains the model; `python -m systems predict` makes the predictions."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from common.files import INSTALLED
from systems.compile import document as compiled
from systems.predict import document as prediction
from timetotrain.forecast import presets, workloads

KINETICS = ("tsm_kinetics", "summit-256")
# The ten forecasts of docs/prediction.md.
EXAMPLES = (
    ("resnet", "h100-8"),
    ("resnet", "b200-8"),
    ("resnet", "tpu-v5e-16"),
    ("maskrcnn", "h100-8"),
    ("ssd", "tpu-v6e-256"),
    ("transformer", "h100-8"),
    ("bert", "h200-8"),
    ("retinanet", "b200-8"),
    ("llama2_70b_lora", "h200-8"),
    ("llama31_8b", "b200-8"),
)


def main(argv: list[str] | None = None) -> int:
    """Fits the constants, or writes the pages; returns 0."""
    parser = argparse.ArgumentParser(prog="python -m systems.predict", description=__doc__)
    parser.add_argument(
        "what",
        choices=("fit", "docs"),
        help="fit: data/constants.json and law.json; docs: docs/prediction*.md and docs/compiled.md",
    )
    arguments = parser.parse_args(argv)
    if INSTALLED:
        parser.error("it writes files of a checkout; run `python -m systems.predict` there")
    if arguments.what == "fit":
        _fit()
    else:
        prediction.write(workloads.predict(*KINETICS), examples())
        compiled.PATH.write_text(compiled_page(), encoding="utf-8")
    return 0


def prediction_pages() -> dict[Path, str]:
    """Renders docs/prediction.md and docs/prediction-method.md."""
    return prediction.render(workloads.predict(*KINETICS), examples())


def examples() -> list[tuple[str, ...]]:
    """The rows of EXAMPLES for docs/prediction.md."""
    return [_example(benchmark, system) for benchmark, system in EXAMPLES]


def _example(benchmark: str, system: str) -> tuple[str, ...]:
    from systems.predict import hardware, law, money, scores

    target = hardware.machine(hardware.load(system), None, [])
    if benchmark in law.OURS:
        answer = workloads.predict(benchmark, system)
        minutes, interval = answer.run.total / 60, answer.interval
        interval = interval and (interval[0] / 60, interval[1] / 60)
    else:
        found = law.estimate(benchmark, target.chip, target.accelerators)
        minutes, interval = found.minutes, None if found.reason else (found.low, found.high)
    same = [
        row.minutes
        for row in scores.rows()
        if (row.benchmark, row.chip, row.accelerators)
        == (benchmark, target.chip["name"], target.accelerators)
    ]
    cost = money.price(target.chip["name"], None, None)
    power = money.energy(target.chip, target.accelerators, minutes, interval)
    return (
        f"`{benchmark} --system={system}`",
        f"{minutes:.3g}",
        "{:.3g} to {:.3g}".format(*interval) if interval else "cannot say",
        f"{min(same):.3g} to {max(same):.3g} ({len(same)})" if same else "none",
        f"{cost.dollars(target.accelerators, minutes):.2f}" if cost else "",
        f"{power.kwh:.2f}" if power else "",
    )


def compiled_page() -> str:
    """Renders docs/compiled.md."""
    return compiled.render(list(presets.to_compile()))


def _fit() -> None:
    from systems.predict import compute, fitting, law_fit, measured, program_fit

    constants, left_out = fitting.refit()
    constants[measured.FAMILY] = measured.refit(constants["v100"]["constants"]["turnaround"])
    tpu = constants[program_fit.FAMILY]
    tpu["programs"], programs = program_fit.refit(fitting.Constants(**tpu["constants"]))
    compute.PATH.write_text(json.dumps(constants, indent=1) + "\n", encoding="utf-8")
    fitting.write_left_out({fitting.FORMULAS: left_out} | programs)
    law_fit.write(law_fit.refit())
