"""`timetotrain systems compile BENCHMARK --system=NAME`: compiles a preset's steps for absent devices and reports.

Without --system, compiles every preset of the benchmark; with benchmark `all`, every preset of every benchmark.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from common.config import benchmarks
from common.config.overrides import preset
from common.errors import UserError, near
from systems.compile import document, launches, run, series
from systems.compile.targets import NAMES, kind_of_preset, target
from timetotrain.machines import presets


def add(commands: Any) -> None:
    """Adds the command to the parser's commands."""
    command = commands.add_parser(
        "compile", help="compile a preset's steps for its devices, which may be absent"
    )
    command.add_argument("benchmark", metavar="BENCHMARK", help=f"{', '.join(benchmarks.NAMES)}, or all")
    command.add_argument(
        "--system", help="preset, as in `python -m BENCHMARK --system`; default: all of them"
    )
    command.add_argument("--target", metavar="KIND", help=f"another device: {', '.join(NAMES)}")
    command.add_argument(
        "--program", choices=("train", "eval", "both"), default="train", help="which steps; default: train"
    )
    command.add_argument("--keep", metavar="DIR", type=Path, help="put the optimized programs' text here")
    command.add_argument(
        "--again",
        action="store_true",
        help="with all: compile again where the program has changed",
    )
    command.add_argument("--json", action="store_true", help="the reports as JSON")
    command.add_argument(
        "flags", nargs="*", metavar="-- --config.FIELD=VALUE", help="flags of the export, after --"
    )
    command.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    if args.benchmark != "all" and args.benchmark not in benchmarks.NAMES:
        hint = near(args.benchmark, benchmarks.NAMES)
        raise UserError(f"{args.benchmark!r} is not a benchmark{hint}; known: {', '.join(benchmarks.NAMES)}")
    for word in args.flags:
        if not word.startswith("--"):
            raise UserError(f"{word!r}: a second benchmark is not taken; flags of the export follow `--`")
    if not args.system:
        return _run_all(args)
    if args.benchmark == "all":
        raise UserError("--system: goes with one benchmark; leave it out to compile every preset of all")
    with tempfile.TemporaryDirectory(prefix="compile-") as scratch:
        folder = Path(scratch) / "export"
        kind = args.target or kind_of_preset(preset(presets.load(args.benchmark), args.system))
        run.compiler_python(target(kind, 1).platform)  # Checked before the export, which is slow.
        manifest = run.export(args.benchmark, args.system, folder, args.flags, _say, args.program)
        if not manifest["programs"]:
            raise UserError(
                f"--program={args.program}: not exported: {'; '.join(manifest['refused'].values())}"
            )
        goal = target(kind, int(manifest.get("num_replicas", 1)))
        reports = {
            p["name"]: run.compiled(folder, manifest, p, goal, _say, keep=args.keep, benchmark=args.benchmark)
            for p in manifest["programs"]
        }
    if not (args.target or args.flags):
        series.keep(args.benchmark, args.system, kind, reports, series.lengths(manifest))
    if args.json:
        print(json.dumps(reports, indent=1))
    else:
        for name, report in reports.items():
            print("\n".join(lines(name, report)))
    return 0 if all(report.get("fits") for report in reports.values()) else 1


def _run_all(args: argparse.Namespace) -> int:
    for flag in ("--target", "--keep", "flags after `--`"):
        if getattr(args, flag.split()[0].lstrip("-")):
            raise UserError(f"{flag}: for one preset; give its --system")
    names = presets.CHEAPEST_FIRST if args.benchmark == "all" else (args.benchmark,)
    jobs = list(presets.to_compile(names))
    missed = series.compile_all(jobs, args.program, args.again, _say)
    if args.json:
        records = {
            f"{benchmark} {system}": series.record_of(benchmark, system) for benchmark, system, _ in jobs
        }
        print(json.dumps(records, indent=1))
    else:
        print(document.table(jobs))
    return 1 if missed else 0


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def lines(name: str, report: dict) -> list[str]:
    """Formats a report as a table of a few lines."""
    head = f"{name}  {report['topology']}, {report['replicas']} replicas, program {report['digest']}"
    if "error" in report:
        return [head, f"  does not compile: {report['error']}"]
    memory, mib = report["memory"], 2**20
    sizes = ", ".join(
        f"{part.replace('_', ' ')} {memory[part] / mib:.0f}"
        for part in ("argument", "temp", "generated_code")
    )
    verdict = "fits" if report["fits"] else "DOES NOT FIT"
    text = [
        head,
        f"  memory      {report['needed_bytes'] / mib:.0f} of {report['device_bytes'] / mib:.0f} MiB a device, "
        f"{verdict} ({sizes})",
    ]
    if "unread" in report:
        return [*text, f"  not read    the optimized program's text: {report['unread']}"]
    if "cycles" in report:
        kinds = ", ".join(f"{kind} {n / 1e6:.2f}" for kind, n in report["cycles"]["by_kind"].items())
        text.append(f"  cycles      {report['cycles']['total'] / 1e6:.2f} million ({kinds})")
        time = report["estimated_ms"]
        text.append(
            f"  estimate    {'no clock known' if time is None else f'{time:.2f} ms'} by cycles, "
            f"{report['optimal_ms']:.2f} ms by flops and bytes; without the exchange"
        )
        layers = list(report["cycles"]["by_layer"].items())[:5]
        text.append("  dearest     " + ", ".join(f"{layer} {n / 1e6:.2f}" for layer, n in layers))
    if "kernels" in report:
        calls = ", ".join(f"{call} {n}" for call, n in report["kernels"]["calls"].items()) or "none"
        types, wide = (
            ", ".join(f"{k} {n}" for k, n in report["kernels"][part].items()) or "none"
            for part in ("matrix_types", "wide_matrices")
        )
        text.append(f"  kernels     {calls}")
        text.append(f"  products    {types}; wider than 16 bits: {wide}")
    if "launches" in report:
        text += launches.lines(report["launches"])
    for row in report["collectives"][:8]:
        size = f"{row['groups']} x {row['group_size']}" if row["group_size"] else "all"
        text.append(
            f"  exchange    {row['count']} {row['operation']} over {size}, {row['bytes'] / 1e6:.2f} MB "
            f"{row['strategy']}"
        )
    copies = report["copies"]
    text.append(
        f"  copies      {copies['count']}, {copies['bytes'] / 1e6:.1f} MB, {copies['cycles'] / 1e6:.2f} million cycles"
    )
    text.append(f"  64-bit      {report['wide_arithmetic'] or 'none'}")
    text.append(
        f"  compiler    {report['compile_seconds']} s, {report['compiler_gigabytes']} GB, {report['compiler']}"
    )
    return text
