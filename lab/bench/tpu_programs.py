"""What the TPU's compiler says of this checkout's training steps, beside the steps that systems/compile/results holds.

    python -m lab.bench.tpu_programs [--cases transformer resnet ...] [--keep DIR]

It needs no TPU, but the compiler that `make aot` installs, and about two minutes for each step. The steps are those of
the presets tpu-v3-32, for 32 cores. The stored ones are the published programs, which the forecast uses. A step that
changed since is measured against the stored one; the stored one stays.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common.errors import UserError
from lab.bench.harness import arguments
from lab.bench.harness.results import head, write
from systems.compile import run, series

SYSTEM, KIND = "tpu-v3-32", "tpu-v3"
# {benchmark: its step; of several shapes, one}.
CASES = {
    "transformer": "train",
    "resnet": "train",
    "ssd": "train",
    "gnmt": "train-1",
    "maskrcnn": "train-0",
}


def figures(report: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a report's scheduled cycles, by kind too, and its memory.

    Raises:
      UserError: the program does not compile, or jaxlib cannot read it.
    """
    if "cycles" not in report:
        raise UserError(f"tpu_programs: no cycles: {report.get('error') or report.get('unread')}")
    return {
        "digest": report["digest"],
        "cycles": report["cycles"]["total"],
        "by_kind": report["cycles"]["by_kind"],
        "needed_bytes": report["needed_bytes"],
    }


def stored(benchmark: str, program: str) -> dict[str, Any]:
    """Returns the compiler's report on the stored step.

    Raises:
      UserError: there is none.
    """
    record = series.record_of(benchmark, SYSTEM)
    if not record or program not in record["programs"]:
        raise UserError(f"{benchmark} {SYSTEM}: not stored; run `python -m systems compile {benchmark}`")
    return series.reports(record)[program]


def compiled(benchmark: str, program: str, results: Path) -> dict[str, Any]:
    """Returns the compiler's report on this checkout's step; takes it from `results`, or puts it there.

    Raises:
      UserError: the export fails, or the compiler is missing.
    """
    record = series.compile_preset(benchmark, SYSTEM, KIND, program, _say, results)
    if "error" in record:
        raise UserError(record["error"])
    return series.reports(record, results)[program]


def compared(benchmark: str, results: Path) -> dict[str, Any]:
    """Returns {"step", "stored", "now"}; the last two are `figures` by one version of the compiler.

    Raises:
      UserError: as above, or the versions differ.
    """
    program = CASES[benchmark]
    before = stored(benchmark, program)
    now = compiled(benchmark, program, results)
    if before["compiler"] != now["compiler"]:
        raise UserError(
            f"{benchmark} {SYSTEM}: stored by {before['compiler']}, this is {now['compiler']}; install that one"
        )
    return {"step": program, "stored": figures(before), "now": figures(now)}


def _say(line: str) -> None:
    print(line, flush=True)


def main() -> None:
    parser = arguments.parser(__doc__, "tpu_programs.json")
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--keep", type=Path, help="keep reports here, and take them from here")
    options = parser.parse_args()
    result = json.loads(options.output.read_text()) if options.output.exists() else {"cases": {}}
    result |= {**head("jax", "jaxlib"), "compiler": run.versions("tpu")}
    with tempfile.TemporaryDirectory() as scratch:
        for name in options.cases:
            result["cases"][name] = compared(name, options.keep or Path(scratch))
            write(result, options.output)


if __name__ == "__main__":
    main()
