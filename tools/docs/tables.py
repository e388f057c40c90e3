"""Makes the tables without peers: kernels, updates, exchanges, compiled steps, faults and long runs."""

import json
import statistics
from collections import Counter
from typing import Any

import numpy as np

from common.config import benchmarks
from lab.studies import llama_ptb as llama_ptb_study
from timetotrain.run.ending import beaten
from tools.docs.measurements import Table, load


def _compiled(kind: str) -> list[dict[str, Any]]:
    """Returns the cases of lab/bench/compiled_step.py that were compiled for a kind of device."""
    cases = load("compiled_step.json")["cases"]
    return [case for name, case in cases.items() if name.startswith(f"{kind}/")]


def compiled_steps() -> Table:
    """Table of training steps compiled for one TPU v3 core, ours and the JAX peers'."""
    head = (
        "step",
        "of",
        "estimate ms",
        "by flops and bytes ms",
        "GB read and written",
        "memory MB",
        "copies",
    )
    rows = []
    for case in _compiled("tpu-v3"):
        ours = {name if name == "ours" else f"ours, {name}": row for name, row in case["ours"].items()}
        for name, row in (ours | case["peers"]).items():
            times = (f"{row['estimated_ms']:.1f}", f"{row['optimal_ms']:.1f}")
            sizes = (f"{row['bytes_accessed'] / 1e9:.1f}", f"{row['needed_bytes'] / 1e6:.0f}")
            copied = f"{row['copies']['cycles'] / row['cycles']:.0%}"
            calls, over_ours = str(row["generator_calls"]), f"{row.get('over_ours', 1.0):.2f}"
            rows.append((case["title"], name, *times, *sizes, copied, calls, over_ours))
    return (*head, "generator calls without a cost", "estimate over ours"), rows


def gpu_programs() -> Table:
    """Table of what compiled steps launch and move on a GPU: an earlier commit's, ours now, and the JAX peers'."""
    head = ("step", "of", "kernels", "kernels in loops", "loops turns x kernels", "GB read", "GB written")
    rows = []
    for case in _compiled("h100"):
        ours = {"ours" if label == "now" else f"ours {label}": row for label, row in case["ours"].items()}
        for name, row in (ours | case["peers"]).items():
            turns = Counter(f"{loop['turns'] or '?'} x {loop['kernels']}" for loop in row["loops"])
            loops = ", ".join(f"{count} of {loop}" for loop, count in turns.items()) or "none"
            kernels = (str(row["kernels"]), str(row["loop_kernels"]))
            moved = (f"{row[key] / 1e9:.1f}" for key in ("bytes_read", "bytes_written"))
            copies = (str(row["copies"]["count"]), f"{row['copies']['bytes'] / 1e6:.0f}")
            memory = f"{row['needed_bytes'] / 1e6:.0f}"
            rows.append((case["title"], name, *kernels, loops, *moved, *copies, memory))
    return (*head, "copies", "MB of copies", "memory MB"), rows


def faults() -> Table:
    """Table of injected faults, by kind and of all: how they ended, and the seconds lost by those that came back."""
    head = ("fault", "backends", "injected", "ended as it should", "came back to equal weights")
    matrix, rows = load("faults.json")["matrix"], []
    for kind in [*sorted({key.split("/")[1] for key in matrix}), "all"]:
        runs = {key: each for key, each in matrix.items() if kind in ("all", key.split("/")[1])}
        outcomes = list(runs.values())
        lost = [each["seconds_lost"] for each in outcomes if each["came_back"] and each["equal"]]
        counts = (
            len({key.split("/")[0] for key in runs}),
            len(outcomes),
            sum(each["as_it_should"] for each in outcomes),
            len(lost),
            sum(
                each["equal"] and not each["came_back"] and "/terminated/" not in key
                for key, each in runs.items()
            ),
            sum(each["hung"] for each in outcomes),
            sum(each["message"] != "" and not each["named"] for each in outcomes),
        )
        seconds = (statistics.median(lost), np.percentile(lost, 99)) if lost else ()
        rows.append((kind, *map(str, counts), *([f"{each:.0f}" for each in seconds] or ["-", "-"])))
    return (*head, "went on undisturbed", "hung", "misnamed", "median seconds lost", "p99"), rows


def goodput() -> Table:
    """Table of the steps that runs keep under faults, and each kind's median seconds to the next checkpoint."""
    head = ("backend", "replicas", "starts again by", "seconds", "faults", "steps", "kept")
    kinds, rows = ("killed", "frozen", "partition"), []
    for backend, runs in load("goodput.json")["runs"].items():
        whole = runs["undisturbed"]["steps"] / runs["undisturbed"]["seconds"]
        for name, run in runs.items():
            lost: dict[str, list[float]] = {kind: [] for kind in kinds}
            for fault in run["faults"]:
                if "seconds_lost" in fault:
                    lost[fault["kind"]].append(fault["seconds_lost"])
            medians = (f"{statistics.median(each):.0f} s" if each else "-" for each in lost.values())
            counts = (f"{run['seconds']:.0f}", str(len(run["faults"])), f"{run['steps']:,}")
            share, load_before = run["steps"] / run["seconds"] / whole, run["machine"]["load_before"][0]
            cells = (backend, str(run["replicas"]), name, *counts, f"{share:.1%}", *medians)
            rows.append((*cells, f"{load_before:.0f}"))
    return (*head, *kinds, "load before"), rows


def soak() -> Table:
    """Table of long runs of several processes: what the worst of them holds early and at the end."""
    rows = []
    for backend, counts in load("long_run.json")["processes"].items():
        for processes, marks in counts.items():
            for row in (marks[0], marks[-1]):
                sizes = (f"{row['kilobytes'] / 1e3:.0f}", str(row["handles"]), str(row["threads"]))
                rows.append((backend, processes, f"{row['steps']:,}", *sizes))
    return ("backend", "processes", "steps", "MB", "handles", "threads"), rows


def long_runs() -> Table:
    """Table of long runs: the process's memory early and at the end, and each block's increase in between."""
    rows = []
    for name, checks in load("long_run.json")["benchmarks"].items():
        early, late = checks[0], checks[-1]
        added = (late["kilobytes"] - early["kilobytes"]) / (late["blocks"] - early["blocks"])
        blocks = f"{early['blocks']}, {late['blocks']:,}"
        memory = ", ".join(f"{each['kilobytes'] / 1e3:.0f}" for each in (early, late))
        counts = (f"{early[key]}, {late[key]}" for key in ("handles", "threads"))
        rows.append((name, blocks, memory, f"{added:.1f} kB", *counts))
    return ("benchmark", "blocks", "MB held", "a block adds", "handles", "threads"), rows


def llama_ptb() -> Table:
    """Table of a study's two networks: what each reaches in equal minutes."""
    names = {"ptb": "LSTM of ptb", "llama31_8b": "Transformer of llama31_8b"}
    rows = [
        (names[row["network"]], f"{row['minutes']:.1f}", f"{row['epochs']:.2f}", f"{row['perplexity']:.1f}")
        for row in json.loads(llama_ptb_study.RESULTS.read_text(encoding="utf-8"))["rows"]
    ]
    return ("network", "minutes", "epochs", "perplexity"), rows


def small_sets() -> Table:
    """Table of `timetotrain data` and `run --system=here` on small sets, beside answers without a network."""
    head = ("set", "benchmark", "examples", "epochs", "minutes on cores", "best", "baseline", "peer")
    rows, words = [], {True: "yes", False: "no"}
    for row in load("own_data.json")["sets"]:
        measure = benchmarks.module(row["benchmark"], "config").Config.quality
        answers = (
            f"{measure.target(answer['value'])}, {answer['what']}" if answer else "not measured"
            for answer in (row["baseline"], row["peer"])
        )
        score = measure.score(row["quality"])
        won = beaten(measure, measure.score(row["baseline"]["value"]), score)
        # What a run that was stopped has not beaten, it might have beaten later.
        whole = won or row["epochs"] == row["of"]
        right = {"will": won, "will hardly": not won}.get(row["outlook"]) if whole else None
        peer = words[score >= measure.score(row["peer"]["value"])] if row["peer"] else ""
        sizes = (f"{row['train']:,} and {row['eval']:,}", f"{row['epochs']:g} of {row['of']:g}")
        minutes = f"{row['seconds'] / 60:.1f} on {row['machine']['cores']}"
        cells = (row["set"], row["benchmark"], *sizes, minutes, measure.text(row["quality"]), *answers)
        rows.append((*cells, words[won], peer, row["outlook"], words.get(right, "")))
    return (*head, "beats the baseline", "beats the peer", "outlook", "outlook right"), rows
