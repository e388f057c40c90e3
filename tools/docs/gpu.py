"""Makes the tables about GPUs from lab/bench/results/gpu: each file is a report of lab.bench.gpu, or lines of reports.

A file of lines (.jsonl) has reports of lab.bench.gpu, and of lab.bench.replay, each with the steps of one network.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lab.bench.gpu.report import with_floor
from lab.bench.harness.figures import PEAKS
from systems.compile import series, store, targets
from tools.docs.measurements import RESULTS, Table, load

FOLDER = RESULTS / "gpu"
NETWORKS = {
    "resnet": "ResNet-50",
    "transformer": "Transformer big, 256 tokens",
    "ssd": "SSD-300",
    "gnmt": "GNMT, 48 tokens",
    "tsm_kinetics": "TSM, 8 frames",
    "maskrcnn": "Mask R-CNN, 832 x 1344",
    "mnist": "MNIST",
    "ptb": "PTB",
}
NOT_RUN = "not run"
# TFLOP of a sequence of Llama 3.1 8B as published logs count them: half of the attention, no recomputation.
_SEQUENCE = 421.6
Card = Mapping[str, Any]


def cards(folder: Path = FOLDER) -> Iterator[tuple[str, Card]]:
    """(name, contents) of each measurement, by date; rows include their floors."""
    measurements = []
    for path in sorted(folder.glob("*.json*")):
        text = path.read_text(encoding="utf-8")
        reports = [json.loads(part) for part in (text.splitlines() if path.suffix == ".jsonl" else [text])]
        heads = [part for part in reports if "rows" in part]
        if not heads:
            continue
        rows = {f"step/{part['benchmark']}": step(part) for part in reports if "programs" in part}
        for head in heads:
            rows |= head["rows"]
        rows = {name: with_floor(row, rows.get("ceilings", {})) for name, row in rows.items()}
        measurements.append((path.stem, {**heads[0], "rows": rows}))
    yield from sorted(measurements, key=lambda each: each[1]["date"])


def step(replayed: Mapping[str, Any]) -> dict[str, Any]:
    """Converts a lab.bench.replay report to a row of lab.bench.gpu."""
    return {**replayed["programs"][0], "network": replayed["benchmark"], "batch": replayed["batch"]["train"]}


def label(card: Card) -> str:
    """Device and date."""
    return f"{card['device'].removeprefix('NVIDIA ')}, {card['date'][:10]}"


def llama() -> Table:
    """Table of Llama 3.1 8B's step by the compiler, and the shares of the peak that the floor allows.

    The floor has an H200's measured rates, and the data sheet's of a B200, which nobody here has measured.
    """
    head = (
        "step", "card", "arguments, GB", "besides, GB", "peak, GB", "moved, TB", "products, TFLOP",
        "floor of bytes, s", "of products, s", "MFU at the floor", "without overlap",
    )  # fmt: skip
    cases, rows = load("compiled_step.json")["cases"], []
    measured = next(card["rows"]["ceilings"] for _, card in cards() if "ceilings" in card["rows"])
    for kind in ("h200", "b200"):
        peak = PEAKS[kind.upper()]["bf16"]
        rates = targets.bandwidth(kind) / 1e9, peak
        if kind == "h200":
            rates = measured["copy_gb_per_second"], measured["product_tflops"]
        for name, row in cases.get(f"{kind}/llama31_8b", {"ours": {}})["ours"].items():
            moved = row["bytes_read"] + row["bytes_written"]
            bytes_s, products_s = moved / 1e9 / rates[0], row["matrix_flops"] / 1e12 / rates[1]
            bounds = (max(bytes_s, products_s), bytes_s + products_s)
            memory = (row["memory"]["argument"], row["memory"]["temp"], row["needed_bytes"])
            rows.append((
                name, kind.upper(), *(f"{x / 1e9:.1f}" for x in memory), f"{moved / 1e12:.2f}",
                f"{row['matrix_flops'] / 1e12:,.0f}", f"{bytes_s:.2f}", f"{products_s:.2f}",
                *(f"{int(name.split()[0]) * _SEQUENCE / peak / seconds:.0%}" for seconds in bounds),
            ))  # fmt: skip
    return head, rows


def llama_nodes() -> Table:
    """Table of the memory that steps of Llama 3.1 8B take on several devices, by their compilers."""
    head = ("preset", "devices", "arguments, GB", "besides, GB", "together, GB", "of, GB")
    rows = []
    for system, record in sorted(store.read("llama31_8b").presets.items()):
        for report in series.reports(record).values():
            parts = (report["memory"]["argument"], report["memory"]["temp"], report["needed_bytes"])
            sizes = (f"{x / 1e9:.1f}" for x in (*parts, report["device_bytes"]))
            rows.append((f"`{system}`", str(report["replicas"]), *sizes))
    return head, rows


def machines() -> Table:
    """Table of the cards, with their software and ceilings."""
    head = ("card", "driver", "cores", "Python", "jax", "PyTorch", "copies, GB/s", "bf16 products, TFLOP/s")
    rows = []
    for _, card in cards():
        versions, top = card["versions"], card["rows"].get("ceilings", {})
        rates = [f"{top[key]:,.0f}" for key in ("copy_gb_per_second", "product_tflops") if key in top]
        software = (versions.get(name, "–") for name in ("python", "jax", "torch"))
        driver = card["nvidia_smi"].get("driver_version", "–")
        rows.append((label(card), driver, str(card["cores"]), *software, *(rates or ("–", "–"))))
    return head, rows


def steps() -> Table:
    """Table of every full-size step, beside its floor and its peers on the same card."""
    head = ("step, bf16", "batch", "card", "ms", "a second", "TFLOP/s", "share of the floor")
    rows = []
    for network, title in NETWORKS.items():
        for _, card in cards():
            row = card["rows"].get(f"step/{network}", {})
            if "ms" not in row:
                continue
            share = f"{row['share_of_floor']:.0%} ({row['floor_of']})" if "share_of_floor" in row else "–"
            figures = (
                f"{row['ms']:.1f}",
                f"{row['examples_per_second']:,.0f}",
                f"{row['tflops']:.0f}",
                share,
            )
            peers = (_peer(card, kind, network) for kind in ("torch", "torch_compiled", "flax"))
            rows.append((title, str(row["batch"]), label(card), *figures, *peers))
    return (*head, "PyTorch eager", "compiled", "flax"), rows


def _peer(card: Card, kind: str, network: str) -> str:
    row, ours = (card["rows"].get(f"{k}/{network}", {}) for k in (kind, "step"))
    if "error" in row:
        return row["error"] if row["error"].startswith("not done") else "error"
    return f"{row['ms'] / ours['ms']:.2f}x" if "ms" in row else NOT_RUN


def checks() -> Table:
    """Table of equality in float64."""
    head = ("step, fp64", "card", "three losses", "state after a step", "its change", "verdict")
    rows = []
    for network, title in NETWORKS.items():
        for _, card in cards():
            row = card["rows"].get(f"check/{network}", {})
            if "equal" in row:
                state, change = row["state_error"], row["change_error"]
                worst = f" ({state['of']})" if state.get("of") and not row["equal"] else ""
                errors = (
                    f"{row['loss_error']:.1g}",
                    f"{state['relative']:.1g}{worst}",
                    f"{change['relative']:.1g}",
                )
                rows.append(
                    (title.partition(",")[0], label(card), *errors, "equal" if row["equal"] else "differs")
                )
    return head, rows


def runs() -> Table:
    """Table of whole runs: to a target, and the loop fed with records."""
    head = ("run", "card", "outcome", "on the clock", "in all")
    rows = []
    for _, card in cards():
        for name, row in card["rows"].items():
            kind, _, network = name.partition("/")
            if kind == "train" and "status" in row:
                outcome = f"{row['status']}, {row['accuracies'][-1]:.4g}"
                rows.append((f"{network}, cpu-tiny", row, outcome, card))
            elif kind == "loop" and "ms" in row:
                bare = card["rows"].get("step/resnet", {}).get("ms")
                beside = f", {row['ms'] / bare:.2f} of the bare step's time" if bare else ""
                outcome = f"{row['images_per_second']:,.0f} images/s{beside}"
                if "images_per_second_of_run" in row:
                    outcome += f", {row['images_per_second_of_run']:,.0f} with start and evaluations"
                source = "photographs" if network == "photographs" else f"{network} pictures kept in memory"
                rows.append((f"ResNet-50, {source}", row, outcome, card))
    return head, [
        (what, label(card), outcome, _seconds(row, "clock_seconds"), _seconds(row, "all_seconds"))
        for what, row, outcome, card in rows
    ]


def _seconds(row: Mapping[str, Any], key: str) -> str:
    return f"{row[key]:.1f} s" if key in row else "–"
