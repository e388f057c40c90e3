"""`timetotrain plan BENCHMARK --round=6.1 --system=NAME`: what a round admits, what it takes, and what it costs."""

from __future__ import annotations

import argparse
import dataclasses
import json
from datetime import datetime
from pathlib import Path
from typing import Any

from common.errors import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Says before the first run what a round admits, what the machine will need, and what it costs."
    )
    add = parser.add_argument
    add(
        "benchmark",
        metavar="BENCHMARK",
        help="a benchmark of the round, of any framework: llama31_8b, flux1, ...",
    )
    add("--round", default="6.1", metavar="ROUND", help="the round (%(default)s)")
    add(
        "--system",
        required=True,
        metavar="NAME",
        help="8xH100-SXM5, p5.48xlarge, a system, or a system's JSON file",
    )
    add("--batch", metavar="N,N", help="global batch sizes to look at, beside those with reference points")
    add(
        "--since",
        metavar="ROUND",
        help="the round whose rules you know: says what changed (default: the one before)",
    )
    add("--as_of", metavar="DATE", help="use the reference points that were public on this day")
    add = parser.add_argument_group("speed and time").add_argument
    add("--throughput", type=float, metavar="SAMPLES_PER_S", help="your measured training samples per second")
    add(
        "--log", type=Path, metavar="FILE", help="an MLPerf log of yours, of at least 20 steps, for the speed"
    )
    add("--deadline", metavar="DATE", help="say if all runs end on this day, and the latest start")
    add("--price", type=float, metavar="USD", help="price of one accelerator for an hour")
    add("--prices", type=Path, metavar="FILE", help="a table of prices in place of the sellers'")
    add("--peak", type=float, metavar="TFLOPS", help="peak of an unknown accelerator, dense, in 16 bits")
    add("--bandwidth", type=float, metavar="GB/S", help="memory bandwidth of an unknown accelerator")
    parser.add_argument("--json", action="store_true", help="print all of it as JSON")


def run(options: argparse.Namespace) -> int:
    """Prints the plan and returns 0; 1 if no batch that is asked for can be submitted or fits.

    Raises UserError if a name is unknown, or a flag makes no sense.
    """
    content = make_plan(options)
    print(json.dumps(content, indent=1, default=str) if options.json else "\n".join(_lines(content)))
    return 0 if any(row["admitted"] and row["fits"] is not False for row in content["batches"]) else 1


def make_plan(options: argparse.Namespace) -> dict[str, Any]:
    """The plan, for JSON."""
    from compliance import rule_changes
    from compliance.log import rules
    from compliance.submission import rounds
    from systems.forecast import machine as machines
    from systems.forecast import memory, money, scores
    from systems.forecast.accelerators import UserFigures
    from timetotrain.forecast import answer, plan_round, plan_time

    benchmark, ruleset = options.benchmark, plan_round.ruleset_of(options.round, options.benchmark)
    needed, notes = rounds.required_runs(benchmark, ruleset), []
    figures = UserFigures(options.peak, options.bandwidth)
    machine = machines.machine(answer.description(benchmark, options.system, figures), None, notes, figures)
    price = money.price(str(machine.chip["name"]), options.price, options.prices)
    last, day = (plan_time.day(flag, getattr(options, flag)) for flag in ("deadline", "as_of"))
    batches = plan_round.batches(benchmark, ruleset, day, _sizes(options.batch))
    batches = batches or [plan_round.Batch(0, plan_round.none(benchmark, ruleset, day), "samples")]
    speed = plan_time.speed_of(options, notes)
    rows = [_row(scores.title(benchmark, f"v{ruleset}"), machine, one) for one in batches]
    now = datetime.now()
    usual = None if speed else plan_time.from_scores(benchmark, ruleset, machine)
    for row, one in zip(rows, batches):
        row["time"] = None
        if one.admitted and row["fits"] is not False:
            minutes = usual and plan_time.with_batch(usual, benchmark, ruleset, machine, one)
            if speed and one.mean:
                try:
                    minutes = plan_time.from_speed(benchmark, ruleset, one, speed)
                except UserError as error:
                    row["untimed"] = str(error)
            row["passes"] = plan_time.passing(one, needed, benchmark)
            if minutes:
                row["time"] = plan_time.costs(minutes, needed, machine, price)
                most = minutes.most(needed) / 60
                row["deadline"] = last and plan_time.deadline(last, row["time"]["hours in turn"], most, now)
    before = rules.RULESETS[: rules.RULESETS.index(ruleset)]
    since = plan_round.since(options.since, before)
    fixed, free = plan_round.hyperparameters(
        benchmark, ruleset, [one.size for one in batches if one.admitted and one.size]
    )
    facts = memory.facts().get(scores.title(benchmark, f"v{ruleset}"), {})
    return {
        "benchmark": benchmark, "round": ruleset, "system": options.system,
        "accelerators": machine.accelerators, "accelerator": machine.chip["name"], "as of": options.as_of,
        "batches": rows, "fixed": fixed, "free": free, "runs": needed, "may fail": rounds.may_fail(benchmark),
        "since": since, "changes": rule_changes.changes(benchmark, since, ruleset) if since else [],
        "data": facts.get("data", {}) | {"host": facts.get("host")}, "assumptions": notes,
    }  # fmt: skip


def _row(benchmark: str, machine: Any, one: Any) -> dict[str, Any]:
    """A batch for JSON, with memory and division."""
    from systems.forecast import memory

    chip, many = machine.chip, machine.accelerators
    fit = memory.fit(benchmark, chip, many, one.size or None)
    division = memory.divide(benchmark, chip, many, machine.per_node, one.size) if one.size else None
    counted = "example" in memory.facts().get(benchmark, {}) and chip.get("memory") and one.size
    fits = None if fit is None else fit.fits and (division is not None or not counted)
    return dataclasses.asdict(one) | {
        "admitted": one.admitted, "evaluations": one.evaluations(one.mean) if one.mean else None, "fits": fits,
        "memory": fit and fit.why, "division": division and division.words(),
    }  # fmt: skip


def _sizes(text: str | None) -> list[int]:
    try:
        sizes = [int(word) for word in (text or "").split(",") if word.strip()]
    except ValueError:
        sizes = [0]
    if any(not 0 < size < 1e9 for size in sizes):
        raise UserError(f"--batch={text}: write global batch sizes as 16,32")
    return sizes


# ------------------------------------------------------------------------------------------------------- text


def _lines(plan: dict[str, Any]) -> list[str]:
    """The plan on a page."""
    head = f"{plan['benchmark']}, round {plan['round'].removesuffix('.0')}, closed division, on {plan['system']}: "
    lines = [f"{head}{plan['accelerators']} x {plan['accelerator']}"]
    for title, part in (
        ("1. Batch sizes", _batches(plan)),
        ("2. Hyperparameters that the rules fix", _table(plan)),
        ("3. Hyperparameters that you choose", _free_lines(plan)),
        ("4. Runs", _runs(plan)),
        ("5. Time, energy and money", _time(plan)),
        ("6. The log", _log(plan)),
        ("7. Data", _data(plan)),
    ):
        lines += ["", title, *(f"  {line}" for line in part)]
    return [*lines, *(f"assumed: {note}" for note in plan["assumptions"])]


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _batches(plan: dict[str, Any]) -> list[str]:
    lines, points = [], [row for row in plan["batches"] if row["kind"] == "point"]
    if plan["as of"]:
        lines.append(f"with the reference points of {plan['as of']}")
    for row in plan["batches"]:
        if not row["size"]:
            none = "the round has no reference points here: no batch is tested for its convergence"
            lines.append(none if row["admitted"] else f"{row['kind']}: no batch could be submitted then")
            continue
        text = f"{row['size']:>7,}  "
        if row["admitted"]:
            if row["mean"] is not None:
                mean, stdev, least = (_number(row[name]) for name in ("mean", "stdev", "least"))
                text += f"{row['kind']}: {mean} +- {stdev} {row['unit']}; your runs' mean must be at least {least}"
                text += f"; public since {row['since']}" if row["since"] else ""
            else:
                text += "no reference points"
        else:
            text += f"cannot be submitted: {row['kind']}"
        lines.append(text)
        if row["admitted"]:
            lines.append(f"         {_memory(row)}")
    if points:
        low, high = points[0]["size"], points[-1]["size"]
        lines.append(
            f"between two points, the line between them counts; below {low:,} and above {high:,} nothing can be "
            "submitted, unless you give reference runs of your own before the round's last day for points"
        )
        lines.append(
            "faster than the reference, but within the test: the score is multiplied by reference / own mean"
        )
    return lines


def _memory(row: dict[str, Any]) -> str:
    if row["fits"] is None:
        return "memory: not known here"
    if not row["fits"]:
        return f"DOES NOT FIT: {row['memory']}"
    return f"fits: {row['division'] or row['memory']}"


def _table(plan: dict[str, Any]) -> list[str]:
    sizes = [f"{row['size']:,}" for row in plan["batches"] if row["admitted"] and row["size"]]
    lines, varying = [], {name: values for name, values in plan["fixed"].items() if len(set(values)) > 1}
    same = {name: values[0] for name, values in plan["fixed"].items() if name not in varying and values}
    lines += [f"{name} = {value}" for name, value in same.items()]
    lines += [
        f"{name}: {', '.join(f'{v} at {n}' for v, n in zip(values, sizes))}"
        for name, values in varying.items()
    ]
    return lines or ["none"]


def _free_lines(plan: dict[str, Any]) -> list[str]:
    return [
        f"{name}: {bound}" + (f"; accepted runs of {runs}" if runs else "")
        for name, (bound, runs) in plan["free"].items()
    ] or ["none"]


def _runs(plan: dict[str, Any]) -> list[str]:
    needed, fail = plan["runs"], plan["may fail"]
    lines = [
        f"{needed} runs that follow each other count, none may be left out; the score is their mean without the "
        f"fastest {fail} and the slowest {fail}; {fail} may miss the target: a missed run is the slowest",
        "each run has another seed, and logs it; all have the same batch and the same hyperparameters",
    ]
    grids: dict[str, list[str]] = {}
    for row in plan["batches"]:
        if row["admitted"] and row["every"]:
            grid = f"every {_number(row['every'])} {row['unit']}, the first at {_number(row['first'])}"
            number = f"{row['size']:,}" + (
                f" ({row['evaluations']} until the mean)" if row["evaluations"] else ""
            )
            grids.setdefault(grid, []).append(number)
    lines += [f"evaluations {grid}: batch {', '.join(sizes)}" for grid, sizes in grids.items()]
    chances = [f"{row['passes']:.2f} at {row['size']:,}" for row in plan["batches"] if row.get("passes")]
    return lines + (
        [f"all runs pass the convergence test with probability {', '.join(chances)}"] if chances else []
    )


def _time(plan: dict[str, Any]) -> list[str]:
    from systems.forecast import law, money

    lines, rows = [], [row for row in plan["batches"] if row["time"]]
    for row in rows:
        one = row["time"]
        low, high = (_hours(end) for end in one["interval"])
        name = f"batch {row['size']:,}" if row["size"] else "any batch"
        text = f"{name}: {_hours(one['minutes'])} a run ({low} to {high}), {plan['runs']} in turn "
        text += f"{_hours(60 * one['hours in turn'])}, on {plan['runs']} such machines at once "
        text += " to ".join(_hours(60 * end) for end in one["hours in parallel"])
        text += f"; {one['kwh of all']:,.3g} kWh" if one["kwh of all"] else ""
        lines.append(text + (f"; {money.spread(one['usd of all'])} USD" if one["usd of all"] else ""))
        if due := row["deadline"]:
            words = f"{due['started now']} if the first starts now; latest start {due['latest start']}"
            lines.append(f"  by {due['deadline']}: {words}")
    untimed = dict.fromkeys(row["untimed"] for row in plan["batches"] if "untimed" in row)
    if not lines:
        measure = "cannot say; measure twenty steps and give --throughput=SAMPLES_PER_S or --log=FILE"
        return [*untimed] or [measure]
    sources, prices = (dict.fromkeys(row["time"][name] for row in rows) for name in ("source", "prices"))
    lines += [f"from: {source}" for source in sources] + [f"prices: {text}" for text in prices if text]
    if not any("own speed" in source for source in sources):
        least, most = law.ORDINARY
        lines.append(
            f"that is tuned code; ordinary code takes {least} to {most} times as long. Your own speed is better: "
            "--throughput or --log"
        )
    return lines


def _hours(minutes: float) -> str:
    return f"{minutes / 60:.3g} hours" if minutes >= 120 else f"{minutes:.3g} minutes"


def _log(plan: dict[str, Any]) -> list[str]:
    name = plan["round"].removesuffix(".0")
    text = f"timetotrain rules {plan['benchmark']} closed --ruleset={plan['round']} lists every key"
    if not plan["since"]:
        return [text]
    changed: dict[str, list[str]] = {}
    for one in plan["changes"]:
        changed.setdefault(one.text, []).append(one.subject)
    since = plan["since"].removesuffix(".0")
    lines = [f"{', '.join(subjects)}: {change}" for change, subjects in changed.items()]
    return [*(lines or [f"nothing changed from {since} to {name}"]), f"(changes since {since}); {text}"]


def _data(plan: dict[str, Any]) -> list[str]:
    data = plan["data"]
    if not data.get("license"):
        return ["not known here; see the reference's README in mlcommons/training"]
    size = (
        f"{data['fetch']:,} GB to fetch, {data['keep']:,} GB to keep"
        if data["fetch"]
        else "size not known here"
    ) + (f" (estimated: {data['estimated']})" if "estimated" in data else "")
    host = f"; preparation needs {data['host'] / 1e9:,.0f} GB of host memory" if data["host"] else ""
    return [
        f"{size}{host}",
        f"license: {data['license']}",
        f"who registers: {data['register']}",
        f"source: {data['source']}",
    ]
