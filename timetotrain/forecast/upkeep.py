"""python -m systems.predict fit | docs: maintains the model; `python -m systems predict` makes the predictions."""

from __future__ import annotations

import argparse
import json

from common.files import INSTALLED
from systems.compile import document as compiled
from systems.predict import document as prediction
from timetotrain.forecast import presets, workloads

KINETICS = ("tsm_kinetics", "summit-256")


def main(argv: list[str] | None = None) -> int:
    """Fits the constants, or writes the pages; returns 0."""
    parser = argparse.ArgumentParser(prog="python -m systems.predict", description=__doc__)
    parser.add_argument(
        "what",
        choices=("fit", "docs"),
        help="fit: data/constants.json; docs: docs/prediction.md and docs/compiled.md",
    )
    arguments = parser.parse_args(argv)
    if INSTALLED:
        parser.error("it writes files of a checkout; run `python -m systems.predict` there")
    if arguments.what == "fit":
        _fit()
    else:
        prediction.write(workloads.predict(*KINETICS))
        compiled.PATH.write_text(compiled_page(), encoding="utf-8")
    return 0


def prediction_page() -> str:
    """Renders docs/prediction.md."""
    return prediction.render(workloads.predict(*KINETICS))


def compiled_page() -> str:
    """Renders docs/compiled.md."""
    return compiled.render(list(presets.to_compile()))


def _fit() -> None:
    from systems.predict import fitting, law_fit, measured, program_fit

    constants, left_out = fitting.refit()
    constants[measured.FAMILY] = measured.refit(constants["v100"]["constants"]["turnaround"])
    tpu = constants[program_fit.FAMILY]
    tpu["programs"], programs = program_fit.refit(fitting.Constants(**tpu["constants"]))
    fitting.PATH.write_text(json.dumps(constants, indent=1) + "\n", encoding="utf-8")
    fitting.write_left_out({fitting.FORMULAS: left_out} | programs)
    law_fit.write(law_fit.refit())
