"""Renders the tables of docs/prediction.md and docs/prediction-method.md about published scores of all rounds."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Sequence
from statistics import median

from common.errors import UserError
from systems.predict import (
    chips,
    fitting,
    hardware,
    law,
    law_fit,
    measured,
    money,
    program_fit,
    scores,
)
from systems.predict.document_programs import table
from systems.predict.law_fit import Tested

_NEAR = 4  # A score of at most this many times the size tells how a benchmark scales to a size.
_FAR = 0.35  # Errors that the page lists row by row.


def errors() -> str:
    """The errors of what is left out, and the share of rows inside their 90 % interval."""
    system, round_ = law_fit.left_out("system"), law_fit.left_out("round")
    groups: list[tuple[str, Sequence[Tested]]] = []
    for name, tests in (("each system", system), ("each round", round_)):
        groups += [(f"{name}, our five benchmarks", law_fit.ours(tests)), (f"{name}, all benchmarks", tests)]
    groups.append(("each TPU v4 system, ours", law_fit.ours(t for t in system if t.row.chip == "TPU v4")))
    for newer, older in law_fit.FAMILIES:
        tests = law_fit.family(newer, older)
        base = ", ".join(older)
        if ours := law_fit.ours(tests):
            groups.append((f"{newer} from {base} alone, ours", ours))
        groups.append((f"{newer} from {base} alone, all", tests))
    rows = []
    for name, tests in groups:
        middle, most = law_fit.errors(tests)
        # A family has too few other systems to take widths from: its widths are those that a forecast prints.
        share = law_fit.coverage if name.startswith(("each system", "each round")) else law_fit.held
        inside = f"{share(tests):.0%}"
        rows.append((name, len(tests), f"{middle:.1%}", f"{most:.1%}", inside))
    rows += _own_families()
    return table(("left out", "scores", "median", "nine of ten within", "in their interval"), rows)


def _own_families() -> list[tuple[object, ...]]:
    """The rows of TPU v3 and V100, which have constants of their own."""
    programs = [test for test in program_fit.committed_tests() if test.row.family]
    v100 = [test for test in fitting.committed_tests() if test.row.family == "v100"]
    groups = (
        ("each TPU v3 system, by programs", programs, program_fit.errors()),
        ("each V100 system, by formulas", v100, fitting.errors("v100")),
    )
    found = []
    for name, tests, wrong in groups:
        middle, most = fitting.summary(tests)["together"]
        inside = f"{fitting.coverage(tests, wrong):.0%}"
        found.append((name, len(tests), f"{middle:.1%}", f"{most:.1%}", inside))
    return found


def by_benchmark() -> str:
    """The errors of each benchmark, its system left out."""
    found = []
    for name in scores.benchmarks():
        tests = [t for t in law_fit.left_out("system") if t.row.benchmark == name]
        rounds = [t for t in law_fit.left_out("round") if t.row.benchmark == name]
        middle, most = law_fit.errors(tests)
        later, latest = law_fit.errors(rounds)
        held = f"{law_fit.held(rounds):.0%}"
        chip = Counter(t.row.chip for t in tests)
        found.append(
            (name, len(tests), len(chip), f"{middle:.1%} / {most:.1%}", f"{later:.1%} / {latest:.1%}", held)
        )
    head = ("benchmark", "scores", "kinds of accelerators", "without the system", "without the round")
    head += ("in their interval, without the round",)
    return table(head, found)


def apart(test: Tested) -> float:
    """How many times larger or smaller the nearest score of the same benchmark and accelerator is, its system apart."""
    row = test.row
    others = [
        one.accelerators / row.accelerators
        for one in scores.rows()
        if (one.benchmark, one.chip) == (row.benchmark, row.chip) and one.key != row.key
    ]
    return min((max(ratio, 1 / ratio) for ratio in others), default=math.inf)


def tpu_v4() -> str:
    """TPU v4's errors by the size of the nearest other score, and the rows that carry them."""
    tests = [t for t in law_fit.left_out("system") if t.row.chip == "TPU v4"]
    near = [t for t in tests if apart(t) <= _NEAR]
    far = [t for t in tests if apart(t) > _NEAR]
    parts = [("all", tests), (f"a score within {_NEAR} times the size", near), ("none so near", far)]
    found = [(name, len(ts), *(f"{x:.1%}" for x in law_fit.errors(ts))) for name, ts in parts]
    lines = [table(("TPU v4's scores", "number", "median", "nine of ten within"), found), ""]
    worst = sorted((t for t in tests if t.error > _FAR), key=lambda t: -t.error)
    rows = [
        (
            t.row.round,
            t.row.system,
            t.row.benchmark,
            t.row.accelerators,
            f"{t.row.minutes:.3g}",
            f"{t.minutes:.3g}",
            f"{t.error:.0%}",
            "none" if math.isinf(apart(t)) else f"{apart(t):.3g}",
        )
        for t in worst
    ]
    head = ("round", "system", "benchmark", "accelerators", "minutes published", "predicted", "error")
    return "\n".join([*lines, table((*head, "nearest size, times"), rows)])


def steps() -> str:
    """The six steps measured on an H200, each predicted by the others, by totals and by kernels."""
    left, by_kernels = measured.left_out("steps"), measured.left_out("kernels")
    rows = [
        (
            one.network,
            one.batch,
            f"{one.flops / 1e12:.2f}",
            f"{one.bytes / 1e9:.1f}",
            one.kernels,
            f"{1e3 * one.seconds:.1f}",
            f"{left[one.network]:+.1%}",
            f"{by_kernels[one.network]:+.1%}" if one.network in by_kernels else "no kernels",
        )
        for one in map(measured.totals, measured.NETWORKS.values())
        if one
    ]
    head = (
        "network",
        "batch",
        "TFLOP",
        "GB",
        "kernels",
        "ms measured",
        "error by totals",
        "error by kernels",
    )
    return table(head, rows)


def power() -> str:
    """Every published power result beside the prediction without its submitter's logs."""
    rows = []
    for one in money.powers():
        chip = chips.chips()[one.chip] | {"name": one.chip}
        found = money.energy(chip, one.accelerators, one.minutes, None, money.maker(one.org))
        if found:
            rows.append(
                (
                    one.round,
                    one.org,
                    one.benchmark,
                    f"{one.accelerators} x {one.chip}",
                    f"{one.kwh:.2f}",
                    f"{found.kwh:.2f}",
                    f"{found.kwh / one.kwh - 1:+.0%}",
                )
            )
    head = ("round", "submitter", "benchmark", "accelerators", "kWh published", "predicted", "error")
    return table(head, rows)


def power_errors() -> tuple[float, float]:
    """(median, largest) error of the published power results."""
    each = []
    for one in money.powers():
        chip = chips.chips()[one.chip] | {"name": one.chip}
        found = money.energy(chip, one.accelerators, one.minutes, None, money.maker(one.org))
        each.append(abs(found.kwh / one.kwh - 1))
    return median(each), max(each)


def accelerators() -> str:
    """The accelerators with their figures, and the number of published descriptions that name each."""
    named = Counter(chips.recognise(row) for row in scores.descriptions())
    rows = [
        (
            name,
            f"{entry['peak']['bf16'] / 1e12:.4g}",
            f"{entry['memory_bandwidth'] / 1e9:.4g}",
            f"{entry['link_bandwidth'] / 1e9:.4g}",
            entry.get("watts") or "",
            named[name] or "",
            f"{entry['source']} ({entry['from']}, {entry['date']})",
        )
        for name, entry in chips.chips().items()
    ]
    head = ("accelerator", "TFLOP/s", "GB/s", "link, GB/s", "W", "descriptions", "source")
    return table(head, rows)


def looked_up() -> str:
    """How many accelerators' figures come from where, in words."""
    entries = chips.chips().values()
    kinds = Counter(entry["from"] for entry in entries)
    partly = sum("From memory" in entry["source"] for entry in entries)
    return (
        f"{kinds['vendor']} of {len(entries)} rows come from the vendor's own page, {kinds['third party']} from a "
        f"page that quotes the vendor, {kinds['memory']} from memory. {partly} rows have a figure from memory beside "
        "those that were found; the row names it"
    )


@functools.cache
def known() -> tuple[int, int]:
    """(published descriptions, those of machines that the model forecasts)."""
    fine = 0
    for row in scores.descriptions():
        try:
            hardware.machine(row, None, [])
        except UserError:
            continue
        fine += 1
    return len(scores.descriptions()), fine


def constants() -> str:
    """The kernel's numbers."""
    numbers = law.committed()["kernel"]
    return ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in numbers.items())
