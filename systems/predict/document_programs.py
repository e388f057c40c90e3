"""Renders docs/prediction-method.md's tables about compiled programs: fit, rows by both paths, blocks, starts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from systems.predict import blocks, evaluation, fitting, kernel_costs, model, program_fit, published, workload
from systems.predict.collectives import LINK_SHARE
from systems.predict.compiled import Program, Scaled
from systems.predict.fitting import Test
from systems.predict.published import Row

GOAL = (
    0.10,
    0.25,
)  # Median and 90th percentile for TPU rows: of the time at the published epochs, and of time and epochs together.
_NONE = (
    f"Fewer than {program_fit.FEWEST} rows have a compiled program: nothing is fitted, and every row is predicted by "
    "formulas. What is compiled stands beside the [logs](#blocks-of-the-published-logs)."
)


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Formats a Markdown table."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows])


def constants() -> str:
    """Table of the fitted constants of compiled programs."""
    scale = program_fit.scale()
    if not scale:
        return _NONE
    rows = fitting.committed()[program_fit.FAMILY]["programs"]["rows"]
    names = [name for name in blocks.BENCHMARKS if name in scale.benchmarks]
    head = (
        "rows",
        "`cycles`, one for all",
        *names,
        "`turnaround`, s",
        "`link` (not fitted)",
        "TPU v4, times",
    )
    own = [f"{scale.benchmarks[name]:.3f}" for name in names]
    shared = f"{scale.turnaround:.2f}", f"{scale.link:.2f}", f"{scale.v4:.3f}"
    return table(head, [(rows, f"{scale.cycles:.3f}", *own, *shared)])


def errors() -> str:
    """Median and 90th percentile of the error for rows with a program, by program and by formulas."""
    tests = program_fit.committed_tests()
    if not tests:
        return _NONE
    old = {(t.row.key, t.row.benchmark): t for t in fitting.committed_tests()}
    one = {(t.row.key, t.row.benchmark): t for t in program_fit.committed_tests(program_fit.ONE)}
    third = [t for t in tests if t.row.family]
    groups = [("**TPU v3**", third)]
    groups += [(name, [t for t in third if t.row.benchmark == name]) for name in blocks.BENCHMARKS]
    groups += [("**TPU v4**", [t for t in tests if not t.row.family])]
    groups += [("TPU v4, by TPU v3's constants", program_fit.committed_tests(program_fit.NONE))]
    rows = []
    for name, chosen in groups:
        if not chosen:
            continue
        found = fitting.summary(chosen)
        same = [old[key] for t in chosen if (key := (t.row.key, t.row.benchmark)) in old]
        before = fitting.summary(same) if same else None
        single = fitting.summary([one[t.row.key, t.row.benchmark] for t in chosen])
        cells = [_pair(before and before[part]) for part in ("seconds", "together")]
        cells += [_pair(single["seconds"]), *(_pair(found[part]) for part in ("seconds", "together"))]
        rows.append((name, len(chosen), *cells, _verdict(found)))
    head = ("rows", "number", "time, formulas", "together, formulas", "time, program, one factor")
    return table((*head, "time, program", "together, program", "goals"), rows)


def _pair(pair: tuple[float, float] | None) -> str:
    return f"{pair[0]:.1%} / {pair[1]:.1%}" if pair else "none"


def _verdict(found: dict[str, tuple[float, float]]) -> str:
    missed = []
    for name, part in (("time", "seconds"), ("together", "together")):
        over = [w for w, got, goal in zip(("median", "90th"), found[part], GOAL, strict=True) if got > goal]
        missed += [f"{name} ({' and '.join(over)})"] if over else []
    return "**missed**: " + ", ".join(missed) if missed else "met"


def rows() -> str:
    """Every row with a program: the terms of its step, and its time by both paths."""
    tests = program_fit.committed_tests()
    if not tests:
        return ""
    old = {(t.row.key, t.row.benchmark): t for t in fitting.committed_tests()}
    found = []
    for test in tests:
        row, program = test.row, program_fit.program_of(test.row)
        if not program:
            continue
        machine = published.machine_of(row)
        cycles = 1e3 * sum(program.kinds().values())
        moved = 1e3 * sum(program.exchange(machine, program_fit.scale().link).values())
        before = old.get((row.key, row.benchmark))
        found.append(
            (
                row.round,
                row.system,
                row.benchmark,
                f"{cycles:.1f}",
                f"{moved:.1f}",
                f"{row.seconds / 60:.2f}",
                f"{test.seconds / 60:.2f}",
                f"{before.errors[0]:+.0%}" if before else "none",
                f"{test.errors[0]:+.0%}",
                f"{test.errors[2]:+.0%}",
            )
        )
    head = ("round", "system", "benchmark", "cycles, ms", "exchange, ms", "minutes published", "predicted")
    said = "Every row with a program. The cycles are before the fitted factor.\n\n"
    return said + table((*head, "time, formulas", "time, program", "together, program"), found)


def periods() -> str:
    """The logs' blocks, per step, beside the predictions of the fit to all rows."""
    known = {(row.key, row.benchmark): row for row in (*published.tested(), *published.held_out())}
    found = []
    for block in blocks.rows():
        row = known[block.key, block.benchmark]
        work = workload.as_logged(published.workload_of(row))
        steps = blocks.epochs(block) * work.steps_per_epoch
        program = program_fit.program_of(row)
        told = "inside" if block.evaluation is None else f"{block.evaluation:.1f}"
        scale = program_fit.scale()
        here = Scaled(program, scale) if scale and program else None
        predicted = 1e3 * _period(row, here, steps) / steps if here else None
        logged = 1e3 * block.period / steps
        found.append(
            (
                block.round,
                block.system,
                block.benchmark,
                f"{block.period:.2f}",
                f"{logged:.1f}",
                _estimate(row, program) if program else "no program",
                f"{predicted:.1f}" if predicted else "",
                f"{predicted / logged - 1:+.0%}" if predicted else "",
                f"{block.start:.1f}",
                told,
            )
        )
    head = ("round", "system", "benchmark", "block, s", "ms a step", "our program: cycles + exchange, ms")
    return table((*head, "predicted", "error", "start, s", "evaluation, s"), found)


def _estimate(row: Row, program: Program) -> str:
    """A step's cycles divided by the clock and its modelled exchange, without a fitted factor."""
    moved = sum(program.exchange(published.machine_of(row), LINK_SHARE).values())
    return f"{1e3 * sum(program.kinds().values()):.1f} + {1e3 * moved:.1f}"


def _period(row: Row, made: Scaled, steps: float) -> float:
    """Seconds of a block and its evaluation."""
    work, machine = workload.as_logged(published.workload_of(row)), published.machine_of(row)
    values = fitting.constants("tpu-v3")
    one = model.step(work, machine, values, made).total
    device = evaluation.device_seconds(work, kernel_costs.load(work.network), machine, values, made)
    host = work.host_evaluation if work.blocking else 0.0
    return steps * one + device + host + made.scale.turnaround


def starts() -> str:
    """The logs' medians that predictions use."""
    found = []
    for name in blocks.BENCHMARKS:
        for recipe in ("v0.6", "v0.7"):
            waits = "the next block" if (recipe, name) in blocks.WAITING else "the end of the run"
            seconds = blocks.evaluation(name, recipe)
            cell = f"{seconds:.1f}" if seconds else "inside the blocks"
            found.append((name, recipe, f"{blocks.start(name, recipe):.1f}", cell, waits if seconds else ""))
    return table(
        ("benchmark", "round", "start, s", "evaluation beside the blocks, s", "what waits for it"), found
    )


def largest(tests: Sequence[Test] | None = None) -> str:
    """A sentence that lists the rows off by more than a quarter; '' if nothing is fitted."""
    chosen = program_fit.committed_tests() if tests is None else tests
    if not chosen:
        return ""
    far = sorted((t for t in chosen if abs(t.errors[0]) > GOAL[1]), key=lambda t: -abs(t.errors[0]))
    if not far:
        return "Off by more than a quarter at the published epochs: no row."
    names = [f"{t.row.benchmark} on `{t.row.system}` of {t.row.round} ({t.errors[0]:+.0%})" for t in far]
    return f"Off by more than a quarter at the published epochs: {', '.join(names)}."
