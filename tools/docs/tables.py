"""Makes the tables without peers: kernels, updates, exchanges, compiled steps, faults and long runs."""

import json
import statistics
import string
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from common.config import benchmarks
from lab.studies import llama_ptb as llama_ptb_study
from timetotrain.run.ending import beaten
from tools.docs.measurements import Table, load


class _Formatter(string.Formatter):
    """Formats `{seconds:1e3|.1f}` as 1000 times the value, with one decimal."""

    def format_field(self, value: Any, format_spec: str) -> str:
        factor, _, form = format_spec.rpartition("|")
        return super().format_field(float(factor) * value if factor else value, form)


def table_of(rows: Iterable[Mapping[str, Any]], **columns: str) -> Table:
    """Returns a table with a row for each mapping.

    Args:
      rows: mappings with the values that the columns name.
      **columns: {name, with "_" for spaces: the format string of its cells}.
    """
    head = tuple(name.replace("_", " ") for name in columns)
    return head, [tuple(_Formatter().vformat(form, (), row) for form in columns.values()) for row in rows]


def _compiled(kind: str) -> list[dict[str, Any]]:
    """Returns the cases of lab/bench/compiled_step.py that were compiled for a kind of device."""
    cases = load("compiled_step.json")["cases"]
    return [case for name, case in cases.items() if name.startswith(f"{kind}/")]


def compiled_steps() -> Table:
    """Table of training steps compiled for one TPU v3 core, ours and the JAX peers'."""
    rows = []
    for case in _compiled("tpu-v3"):
        named = {name if name == "ours" else f"ours, {name}": row for name, row in case["ours"].items()}
        for name, row in (named | case["peers"]).items():
            copied = row["copies"]["cycles"] / row["cycles"]
            rows.append({"over_ours": 1.0, **row, "title": case["title"], "of": name, "copied": copied})
    return table_of(
        rows,
        step="{title}",
        of="{of}",
        estimate_ms="{estimated_ms:.1f}",
        by_flops_and_bytes_ms="{optimal_ms:.1f}",
        GB_read_and_written="{bytes_accessed:1e-9|.1f}",
        memory_MB="{needed_bytes:1e-6|.0f}",
        copies="{copied:.0%}",
        generator_calls_without_a_cost="{generator_calls}",
        estimate_over_ours="{over_ours:.2f}",
    )


def gpu_programs() -> Table:
    """Table of what compiled steps launch and move on a GPU: an earlier commit's, ours now, and the JAX peers'."""
    rows = []
    for case in _compiled("h100"):
        ours = {"ours" if label == "now" else f"ours {label}": row for label, row in case["ours"].items()}
        for name, row in (ours | case["peers"]).items():
            turns = Counter(f"{loop['turns'] or '?'} x {loop['kernels']}" for loop in row["loops"])
            loops = ", ".join(f"{count} of {loop}" for loop, count in turns.items()) or "none"
            rows.append({**row, "title": case["title"], "of": name, "loops": loops})
    return table_of(
        rows,
        step="{title}",
        of="{of}",
        kernels="{kernels}",
        kernels_in_loops="{loop_kernels}",
        loops_turns_x_kernels="{loops}",
        GB_read="{bytes_read:1e-9|.1f}",
        GB_written="{bytes_written:1e-9|.1f}",
        copies="{copies[count]}",
        MB_of_copies="{copies[bytes]:1e-6|.0f}",
        memory_MB="{needed_bytes:1e-6|.0f}",
    )


def faults() -> Table:
    """Table of injected faults, by kind and of all: how they ended, and the seconds lost by those that came back."""
    matrix = load("faults.json")["matrix"]
    kinds = sorted({key.split("/")[1] for key in matrix})
    rows = []
    for kind in [*kinds, "all"]:
        chosen = {key: each for key, each in matrix.items() if kind in ("all", key.split("/")[1])}
        outcomes = list(chosen.values())
        lost = [each["seconds_lost"] for each in outcomes if each["came_back"] and each["equal"]]
        rows.append(
            {
                "kind": kind,
                "backends": len({key.split("/")[0] for key in chosen}),
                "count": len(outcomes),
                "right": sum(each["as_it_should"] for each in outcomes),
                "back": len(lost),
                "undisturbed": sum(
                    each["equal"] and not each["came_back"] and "/terminated/" not in key
                    for key, each in chosen.items()
                ),
                "hung": sum(each["hung"] for each in outcomes),
                "misnamed": sum(each["message"] != "" and not each["named"] for each in outcomes),
                "median": f"{statistics.median(lost):.0f}" if lost else "-",
                "most": f"{np.percentile(lost, 99):.0f}" if lost else "-",
            }
        )
    return table_of(
        rows,
        fault="{kind}",
        backends="{backends}",
        injected="{count}",
        ended_as_it_should="{right}",
        came_back_to_equal_weights="{back}",
        went_on_undisturbed="{undisturbed}",
        hung="{hung}",
        misnamed="{misnamed}",
        median_seconds_lost="{median}",
        p99="{most}",
    )


def goodput() -> Table:
    """Table of the steps that runs keep under faults, and the seconds from a fault to the next checkpoint."""
    rows = []
    for backend, runs in load("goodput.json")["runs"].items():
        whole = runs["undisturbed"]["steps"] / runs["undisturbed"]["seconds"]
        for name, run in runs.items():
            lost = [fault["seconds_lost"] for fault in run["faults"] if "seconds_lost" in fault]
            rows.append(
                {
                    **run,
                    "backend": backend,
                    "name": name,
                    "count": len(run["faults"]),
                    "kept": run["steps"] / run["seconds"] / whole,
                    "lost": ", ".join(f"{seconds:.0f}" for seconds in lost) or "-",
                    "load": run["machine"]["load_before"][0],
                }
            )
    return table_of(
        rows,
        backend="{backend}",
        replicas="{replicas}",
        starts_again_by="{name}",
        seconds="{seconds:.0f}",
        faults="{count}",
        steps="{steps:,}",
        kept="{kept:.1%}",
        seconds_lost="{lost}",
        load_before="{load:.0f}",
    )


def soak() -> Table:
    """Table of long runs of several processes: what the worst of them holds early and at the end."""
    rows = [
        {"backend": backend, "processes": processes, **row}
        for backend, counts in load("long_run.json")["processes"].items()
        for processes, marks in counts.items()
        for row in (marks[0], marks[-1])
    ]
    return table_of(
        rows,
        backend="{backend}",
        processes="{processes}",
        steps="{steps:,}",
        MB="{kilobytes:1e-3|.0f}",
        handles="{handles}",
        threads="{threads}",
    )


def long_runs() -> Table:
    """Table of long runs: the process's memory early and at the end, and each block's increase in between."""
    rows = []
    for name, checks in load("long_run.json")["benchmarks"].items():
        early, late = checks[0], checks[-1]
        added = (late["kilobytes"] - early["kilobytes"]) / (late["blocks"] - early["blocks"])
        rows.append({"name": name, "early": early, "late": late, "added": added})
    return table_of(
        rows,
        benchmark="{name}",
        blocks="{early[blocks]}, {late[blocks]:,}",
        MB_held="{early[kilobytes]:1e-3|.0f}, {late[kilobytes]:1e-3|.0f}",
        a_block_adds="{added:.1f} kB",
        handles="{early[handles]}, {late[handles]}",
        threads="{early[threads]}, {late[threads]}",
    )


def llama_ptb() -> Table:
    """Table of a study's two networks: what each reaches in equal minutes."""
    names = {"ptb": "LSTM of ptb", "llama31_8b": "Transformer of llama31_8b"}
    rows = json.loads(llama_ptb_study.RESULTS.read_text(encoding="utf-8"))["rows"]
    return table_of(
        [row | {"name": names[row["network"]]} for row in rows],
        network="{name}",
        minutes="{minutes:.1f}",
        epochs="{epochs:.2f}",
        perplexity="{perplexity:.1f}",
    )


def small_sets() -> Table:
    """Table of `timetotrain data` and `run --system=here` on small sets, beside answers without a network."""
    rows, words = [], {True: "yes", False: "no"}
    for row in load("own_data.json")["sets"]:
        measure = benchmarks.module(row["benchmark"], "config").Config.quality
        answers = {
            kind: f"{measure.number(answer['value'])}, {answer['what']}"
            if (answer := row[kind])
            else "not measured"
            for kind in ("baseline", "peer")
        }
        won = beaten(measure, row["baseline"]["value"], row["quality"])
        # What a run that was stopped has not beaten, it might have beaten later.
        whole = won or row["epochs"] == row["of"]
        right = {"will": won, "will hardly": not won}.get(row["outlook"]) if whole else None
        said = {"won": words[won], "right": words.get(right, "")}
        rows.append(row | answers | said | {"shown": measure.shown(row["quality"])})
    return table_of(
        rows,
        set="{set}",
        benchmark="{benchmark}",
        examples="{train:,} and {eval:,}",
        epochs="{epochs:g} of {of:g}",
        best="{shown}",
        baseline="{baseline}",
        peer="{peer}",
        beats_the_baseline="{won}",
        outlook="{outlook}",
        outlook_right="{right}",
    )
