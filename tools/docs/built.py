"""The pages that `make docs` builds and git does not hold.

`PAGES` maps a page's path on the site to the function that returns its Markdown. To add a page, add a line to `PAGES`.
Other pages name it as `build/site/built/NAME.html` and do not link to it: its file is not there before `make docs`. A
built page may link to committed files, as `../docs/NAME.md`.
"""

import importlib
import json
from collections.abc import Callable

from common.config import benchmarks
from common.config.run_length import RunLength
from common.config.schema import RunConfig
from common.files import markdown_table
from systems.compile import document as compiled_presets
from timetotrain.machines import presets
from tools.docs import compliance, forecast_tables, gpu, measurements, tables
from tools.docs.measurements import Table
from tools.mutate.faults import RESULTS, summary

FOLDER = "built"


def page(title: str, text: str, *sections: tuple[str, Table]) -> str:
    """Returns a page: its title, an introduction, and tables, each after a sentence."""
    blocks = [f"{sentence}\n\n{markdown_table(*table)}" for sentence, table in sections]
    return "\n\n".join([f"# {title}", text, *blocks]) + "\n"


def mutations() -> str:
    """Returns the outcomes of `make mutate`."""
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    lines = [
        "# Faults that the tests must notice",
        "`make mutate` puts one fault at a time into a copy of the project and runs its tests.",
        "The faults are written by hand, from the papers and the logs.",
        summary(results),
    ]
    return "\n\n".join(lines)


def performance() -> str:
    """Returns every comparison with a peer, every bound, and what compilers say of absent devices."""
    comparisons = [
        (row.case, row.ours, row.peer, f"{row.ratio:.2f}", row.goal_text, row.verdict, _link(row.file))
        for row in measurements.comparisons()
    ]
    bounds = [
        (row.case, row.measured, row.goal, "met" if row.is_met else "missed", _link(row.file))
        for row in measurements.limits()
    ]
    machines = [
        (_link(path.name), *row)
        for path in sorted(measurements.RESULTS.glob("*.json"))
        for row in measurements.machines(path)
    ]
    last = ("goal", "verdict", "file")
    return page(
        "All measurements",
        "[Performance](../docs/performance.md) explains the columns.",
        ("## Peers", (("what", "ours", "peer", "ratio", *last), comparisons)),
        ("## Bounds", (("what", "measured", *last), bounds)),
        ("## Steps compiled for one TPU v3 core, none of which ran", tables.compiled_steps()),
        ("## Steps compiled for one H100, none of which ran", tables.gpu_programs()),
        ("## Machines", (("file", "date", "processor", "instructions", "cores"), machines)),
    )


def _link(name: str) -> str:
    return f"[{name.removesuffix('.json')}](../lab/bench/results/{name})"


def cards() -> str:
    """Returns the measurements of GPUs."""
    return page(
        "Measurements of GPUs",
        "Each row is from a file of `lab/bench/results/gpu`.",
        ("## Cards", gpu.machines()),
        ("## Steps of full size", gpu.steps()),
        ("## Steps in float64, against TensorFlow on a CPU", gpu.checks()),
        ("## Whole runs", gpu.runs()),
    )


def own_data() -> str:
    """Returns the results of training on your own data."""
    return page(
        "Training on your own data",
        "[Your own data](../docs/your-own-data.md) explains the commands.",
        (
            "## Small sets, beside answers without a network\n\nA run that has fewer epochs than `here` chose was "
            "stopped after some minutes, or by `patience` (`python -m lab.bench.small_sets`).",
            tables.small_sets(),
        ),
    )


def all_presets() -> str:
    """Returns a table of presets for each benchmark: what each runs on, its main values, and where they come from."""

    def row(config: RunConfig) -> tuple[str, ...]:
        optimizer, schedule = config.optimizer, config.schedule
        run_length = RunLength.of(config)
        steps = (schedule.warmup_length(run_length.steps_per_epoch), run_length.train_steps)
        names = (f"`{config.system}`", config.hardware, f"{config.global_batch_size:,}", optimizer.name)
        logged = (config.precision, config.ruleset, config.division, str(config.logged_target))
        return (
            *names,
            f"{optimizer.base_learning_rate:.4g}",
            *(f"{n:,.0f}" for n in steps),
            *logged,
            config.source.replace("|", "/"),
        )

    head = ("preset", "machine", "batch", "optimizer", "rate", "steps of warmup", "steps")
    head = (*head, "precision", "ruleset", "division", "target", "source")
    tables_of = [
        (f"## {name}", (head, [row(config) for config in module.PRESETS.values()]))
        for name in benchmarks.NAMES
        for module in [importlib.import_module(f"{name}.presets")]
    ]
    text = "`timetotrain run BENCHMARK --system=PRESET --describe` prints all that a preset's log says."
    return page("Presets", text, *tables_of)


def forecasts() -> str:
    """Returns the forecast's true error, its accelerators and its prices."""
    return page(
        "Forecasts",
        "`python -m lab.bench.law_fit` writes the errors, in percent: median / 90th percentile of the larger of "
        "predicted and published over the smaller, less one.",
        ("## True error, beside look-ups where they have a score", forecast_tables.wrong()),
        ("## Coverage of the intervals, of earlier rounds' width", forecast_tables.coverage()),
        ("## Accelerators", forecast_tables.chips()),
        ("## Prices", forecast_tables.offers()),
    )


def compiled() -> str:
    """Returns what the compilers say of every preset."""
    return compiled_presets.render(list(presets.to_compile()))


def checkers() -> str:
    """Returns the comparison of the checker's verdicts with the stock tools'."""
    return page(
        "The checker beside the stock tools",
        "[The stock checker](../docs/compliance-differences.md) explains the differences.",
        ("## Published logs", compliance.log_rounds()),
        ("## Published logs, by class of difference", compliance.log_classes()),
        ("## Published trees", compliance.rounds()),
        ("## Published trees with a difference", compliance.trees()),
    )


PAGES: dict[str, Callable[[], str]] = {
    "built/forecasts.md": forecasts,
    "built/compiled.md": compiled,
    "built/performance.md": performance,
    "built/presets.md": all_presets,
    "built/gpu.md": cards,
    "built/own-data.md": own_data,
    "built/checkers.md": checkers,
    "built/mutations.md": mutations,
}


def render() -> dict[str, str]:
    """Returns {path: Markdown} of every built page, and of their list, built/index.md."""
    texts = {path: text() for path, text in PAGES.items()}
    lines = [
        f"- [{text.partition(chr(10))[0].removeprefix('# ')}]({path.removeprefix(FOLDER + '/')})"
        for path, text in texts.items()
    ]
    index = "\n".join(["# Built pages", "", "`make docs` builds these from the results.", "", *lines, ""])
    return texts | {f"{FOLDER}/index.md": index}
