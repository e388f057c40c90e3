"""Writes made-up submissions of any round: short logs of closed llama2_70b_lora runs, descriptions, and nothing else.

The logs have what the checks of whole trees read. `verdicts` judges them: a log passes unless its run was aborted or it
says BROKEN.
"""

import json
from pathlib import Path

from compliance.findings import ERROR, finding
from compliance.log.check_log import LogResult
from compliance.submission.runs import read_run
from systems import schema
from tests.compliance.made_logs import record

BENCHMARK, BATCH, SYSTEM = "llama2_70b_lora", 8, "h100_n1"
# The reference's mean at this batch size and round is about 3,000 samples.
SAMPLES = 3072


def log(
    index=0,
    *,
    samples=SAMPLES,
    status="success",
    seed=None,
    start=None,
    minutes=None,
    batch=BATCH,
    more=(),
    **fields,
):
    """The text of one log. `seed` False: none; `batch` None: none; `start` in ms; `more`: lines before the start."""
    header = {"benchmark": BENCHMARK, "division": "closed", "org": "Example", "platform": SYSTEM, **fields}
    lines = [record(f"submission_{name}", value) for name, value in header.items()]
    lines += [record("seed", 1000 + index if seed is None else seed)] if seed is not False else []
    lines += [record("global_batch_size", batch)] if batch is not None else []
    lines += [record("opt_base_learning_rate", 4e-4), *more]
    start = 1000 + index * 10_000_000 if start is None else start
    stop = start + round((30 + index if minutes is None else minutes) * 60_000)
    lines += [
        record("run_start", time_ms=start),
        record("eval_accuracy", 0.92, stop - 10, samples_count=samples),
        record("run_stop", None, stop, status=status),
    ]
    return "\n".join(lines) + "\n"


def description(**changes):
    """A description that every round takes; a change to None leaves the field out."""
    content = dict.fromkeys(schema.NAMES, "x") | {
        "submitter": "Example", "division": "closed", "status": "Available on-premise", "system_name": SYSTEM,
        "number_of_nodes": "1", "host_processors_per_node": "2", "accelerators_per_node": "8", "hw_notes": "",
        "sw_notes": "",
    }  # fmt: skip
    return {name: value for name, value in (content | changes).items() if value is not None}


def tree(folder, *, runs=10, logs=None, ruleset="v5.0", described=None, code=True):
    """A submitter's folder in a repository of the round; `logs`: the texts instead of `runs` good ones."""
    org = Path(folder) / f"training_results_{ruleset}" / "Example"
    place = org / "results" / SYSTEM / BENCHMARK
    place.mkdir(parents=True)
    for index, text in enumerate([log(index) for index in range(runs)] if logs is None else logs):
        (place / f"result_{index}.txt").write_text(text)
    (org / "systems").mkdir()
    (org / "systems" / f"{SYSTEM}.json").write_text(json.dumps(described or description()))
    scripts = org / "benchmarks" / BENCHMARK / SYSTEM
    for name in ("README.md", "setup.sh", "init_datasets.sh", "run_and_time.sh", f"{SYSTEM}_x.json"):
        scripts.mkdir(parents=True, exist_ok=True)
        (scripts / name).write_text("x")
    return org


def passes(path):
    """What the rules of a log would say."""
    text = Path(path).read_text()
    return "BROKEN" not in text and '"status": "success"' in text and "global_batch_size" in text


def verdicts(paths, ruleset, division):
    """Judges the logs, in place of the rules of a round."""
    results = []
    for path in paths:
        fine, run = passes(path), read_run(path, ruleset)
        failed = [] if fine else [finding("run_stop.status", ERROR, path, "success", "aborted")]
        header = (run.header.get(f"submission_{name}") for name in ("benchmark", "division", "platform"))
        results.append(
            LogResult(str(path), ruleset or "5.0.0", failed, *header, None, False, run.minutes, fine, run=run)
        )
    return results
