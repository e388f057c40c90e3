"""Makes the tables without peers: kernels, updates, exchanges, compiled steps, faults and long runs."""

from __future__ import annotations

from collections import Counter

from tools.docs.measurements import Table, load


def optimizers() -> Table:
    """Table of a step's processor time by optimizer, relative to momentum's (Adam's on the Transformer)."""
    found = load("optimizers.json")
    networks, busy = found["networks"], f"{found['machine']['load_before'][0]:.0f}"
    names = list(dict.fromkeys(name for rows in networks.values() for name in rows))
    cells = []
    for name in names:
        rows = [rows.get(name) for rows in networks.values()]
        times = [f"{1e3 * row['cpu_seconds']:.1f} ms, {row['ratio']:.2f}" if row else "" for row in rows]
        slots = max(row["slots"] for row in rows if row)
        cells.append((f"`{name}`", *times, f"{slots:.1f}", busy))
    head = (f"{network}: processor time of a step, ratio to the first row" for network in networks)
    return ("optimizer", *head, "numbers kept per weight, at most", "load"), cells


def optimizers_compiled() -> Table:
    """Table of the sharded steps that compilers of absent devices made: seconds of each, or why it failed."""
    found = load("optimizers_compiled.json")["networks"]
    targets = list(dict.fromkeys(kind for rows in found.values() for row in rows.values() for kind in row))
    names = list(dict.fromkeys(name for rows in found.values() for name in rows))
    rows = []
    for name in names:
        cells = []
        for network in found:
            for kind in targets:
                report = found[network].get(name, {}).get(kind)
                cells.append("" if not report else report["error"] or f"{report['seconds']:.0f} s")
        rows.append((f"`{name}`", *cells))
    return ("optimizer", *(f"{network}, {kind}" for network in found for kind in targets)), rows


def update() -> Table:
    """Table of the weight update, whole and sharded; the pods paper's share of a step is for 2,048 TPU cores."""
    paper = {"resnet": "6%", "transformer": "45%"}  # The pods paper, section 2.
    head = (
        "network",
        "N",
        "CPU s of the update: whole",
        "sharded",
        "ratio",
        "goal",
        "share of the step: whole",
    )
    rows = []
    for network, counts in load("scaling.json")["update"].items():
        for count, row in counts.items():
            whole, sharded = row["whole"], row["sharded"]
            shares = (part["update_cpu_seconds"] / part["step_cpu_seconds"] for part in (whole, sharded))
            rows.append(
                (
                    network,
                    count,
                    f"{whole['update_cpu_seconds']:.3f}",
                    f"{sharded['update_cpu_seconds']:.3f}",
                    f"{row['ratio']:.3f}",
                    f"{row['bar']:.3f}",
                    *(f"{share:.1%}" for share in shares),
                    paper[network],
                    f"{sharded['slot_bytes'] / whole['slot_bytes']:.4f}",
                )
            )
    return (*head, "sharded", "paper, whole", "slots, sharded over whole"), rows


def exchange() -> Table:
    """Table of ResNet-50's gradient sums between local processes."""
    head = ("backend, processes", "variant", "MB sent per replica", "s per step", "CPU s", "MB of slots")
    rows = [
        (
            world,
            variant,
            f"{(row['bytes_inside'] + row['bytes_across']) / 1e6:.1f}",
            f"{row['seconds']:.3f}",
            f"{row['cpu_seconds']:.3f}",
            f"{row['slot_bytes'] / 1e6:.1f}",
        )
        for world, variants in load("scaling.json")["exchange"].items()
        for variant, row in variants.items()
    ]
    return head, rows


def compiled_steps() -> Table:
    """Table of compiled training steps on one core, ours and the JAX peers'."""
    head = (
        "step",
        "of",
        "estimate, ms",
        "by flops and bytes, ms",
        "GB read and written",
        "memory, MiB",
        "copies",
        "generator calls without a cost",
        "estimate over ours",
    )
    rows = []
    for case in load("compiled_step.json")["cases"].values():
        sides = [(name if name == "ours" else f"ours, {name}", row, "") for name, row in case["ours"].items()]
        sides += [(name, row, f"{row['over_ours']:.2f}") for name, row in case["peers"].items()]
        rows += [
            (
                case["title"],
                name,
                f"{row['estimated_ms']:.1f}",
                f"{row['optimal_ms']:.1f}",
                f"{row['bytes_accessed'] / 1e9:.1f}",
                f"{row['needed_bytes'] / 2**20:.0f}",
                f"{row['copies']['cycles'] / row['cycles']:.0%}",
                str(row["generator_calls"] or ""),
                ratio,
            )
            for name, row, ratio in sides
        ]
    return head, rows


def gpu_programs() -> Table:
    """Table of what compiled steps launch and move on a GPU: an earlier commit's, ours now, and the JAX peers'."""
    head = (
        "step",
        "of",
        "kernels",
        "in loops",
        "loops: turns x kernels",
        "GB read",
        "GB written",
        "copies",
        "MB of copies",
        "memory, MiB",
    )
    rows = []
    for case in load("gpu_programs.json")["cases"].values():
        sides = [(label, case[label]) for label in ("before", "now") if label in case]
        for name, row in [*sides, *case.get("peers", {}).items()]:
            loops = Counter(f"{loop['turns'] or '?'} x {loop['kernels']}" for loop in row["loops"])
            rows.append(
                (
                    case["title"],
                    {"before": "ours before", "now": "ours"}.get(name, name),
                    str(row["kernels"]),
                    str(row["loop_kernels"]),
                    ", ".join(f"{n} of {loop}" for loop, n in loops.items()) or "none",
                    f"{row['bytes_read'] / 1e9:.1f}",
                    f"{row['bytes_written'] / 1e9:.1f}",
                    str(row["copies"]["count"]),
                    f"{row['copies']['bytes'] / 1e6:.0f}",
                    f"{row['needed_bytes'] / 2**20:.0f}",
                )
            )
    return head, rows


def tpu_programs() -> Table:
    """Table of the scheduled cycles and the memory of steps for one TPU v3 core: the stored ones, and now."""
    rows = []
    for name, case in load("tpu_programs.json")["cases"].items():
        before, now = case["stored"], case["now"]
        cycles = [f"{side['cycles'] / 1e6:.1f}" for side in (before, now)]
        memory = [f"{side['needed_bytes'] / 2**20:.0f}" for side in (before, now)]
        rows.append((name, case["step"], *cycles, f"{now['cycles'] / before['cycles']:.3f}", *memory))
    sides = [f"{what}, {side}" for what in ("million cycles", "memory, MiB") for side in ("stored", "now")]
    return ("preset `tpu-v3-32` of", "step", *sides[:2], "ratio", *sides[2:]), rows


def faults() -> Table:
    """Table of injected faults: seconds to the last exit, the launcher's message, and the end of the log."""
    found = load("faults.json")["runs"]
    rows = []
    for fault in next(iter(found.values())):
        for backend, kinds in found.items():
            runs = kinds[fault]
            seconds = ", ".join("hung" if r["seconds"] is None else f"{r['seconds']:.1f}" for r in runs)
            rows.append(
                (fault, backend, seconds, runs[0]["message"], ", ".join(sorted({r["log"] for r in runs})))
            )
    return ("fault", "backend", "seconds", "message", "log"), rows


def long_runs() -> Table:
    """Table of long runs: the process's memory early and at the end, and each block's increase in between."""
    rows = []
    for benchmark, found in load("long_run.json")["benchmarks"].items():
        early, late = found[0], found[-1]
        grown = (late["kilobytes"] - early["kilobytes"]) / (late["blocks"] - early["blocks"])
        kept = (f"{early[name]}, {late[name]}" for name in ("handles", "threads"))
        megabytes = ", ".join(f"{row['kilobytes'] / 1024:.0f}" for row in (early, late))
        rows.append(
            (benchmark, f"{early['blocks']}, {late['blocks']:,}", megabytes, f"{grown:.1f} kB", *kept)
        )
    return ("benchmark", "blocks", "MB held", "a block adds", "handles", "threads"), rows
