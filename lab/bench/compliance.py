"""Speed of `compliance check` against the stock checker, on the same machine in the same run.

`python -m lab.bench.compliance [--logs DIR] [--logs-v5 DIR] [-o FILE]` checks the v0.7 subset of the published logs
(unpacked in DIR), 1,000 logs of v5.0, one log from the shell including start-up, and a generated log with 200 MB of
MLLOG lines. It takes the median of `--rounds` rounds, alternating ours and theirs, and measures each side's memory.
It writes a JSON file with the machine and versions.
"""

import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

from compliance.log.rules import compiled
from lab.bench.harness import ROOT, scripts
from lab.bench.harness.rounds import alternate
from lab.bench.harness.scripts import RESULTS, head, write

# The stock command line checks one file per process; package_checker uses it in one process for all.
_STOCK_TREE = """
import sys
from lab.bench.harness import stock_checker
for path in sys.stdin.read().split("\\n"):
    stock_checker.verdict(path, sys.argv[1], seconds=600)
"""

_LOGS_V5 = 1000


def _measure(command: list[str], text: str = "") -> tuple[float, float, float]:
    """Runs a command: (seconds, processor seconds, peak resident MB of the largest process)."""
    # wait4 reports the peak of the child and of the descendants that it waited for.
    with tempfile.TemporaryFile() as source:
        source.write(text.encode())
        source.seek(0)
        started = time.perf_counter()
        child = subprocess.Popen(
            command, cwd=ROOT, stdin=source, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        _, status, usage = os.wait4(child.pid, 0)
        seconds = time.perf_counter() - started
    child.returncode = os.waitstatus_to_exitcode(status)
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def generate(path: Path, size: int) -> int:
    """Writes a valid resnet log of `size` bytes, mostly evaluation and throughput lines; returns the line count."""
    clock, count = 1_600_000_000_000, 0

    def line(key: str, value: object, **metadata: object) -> str:
        nonlocal clock, count
        clock, count = clock + 7, count + 1
        metadata = {"file": "timetotrain/run/mllog.py", "lineno": 120, **metadata}
        record = {
            "namespace": "",
            "time_ms": clock,
            "event_type": "POINT_IN_TIME",
            "key": key,
            "value": value,
        }
        return f":::MLLOG {json.dumps({**record, 'metadata': metadata})}\n"

    head = {"submission_benchmark": "resnet", "submission_division": "closed", "submission_status": "onprem"}
    head |= {"submission_org": "x", "submission_platform": "x", "cache_clear": True, "init_start": None}
    head |= {"seed": 1, "global_batch_size": 4096, "opt_name": "lars"}
    head |= dict.fromkeys(compiled("0.7.0", "closed/resnet_lars"), 2)
    head |= {"lars_opt_end_learning_rate": 0.0001, "lars_epsilon": 0.0, "lars_opt_weight_decay": 0.0002}
    head |= {"train_samples": 1281167, "eval_samples": 50000, "init_stop": None, "run_start": None}
    with open(path, "w") as file:
        written = file.write("".join(line(key, value) for key, value in head.items()))
        epoch = 0
        while written < size:
            epoch += 4
            block = {"first_epoch_num": epoch - 3, "epoch_count": 4}
            lines = [line("block_start", None, **block)]
            lines += [line("throughput", 20000.5 + step, step=step) for step in range(40)]
            lines += [line("eval_start", None, epoch_num=epoch), line("eval_accuracy", 0.5, epoch_num=epoch)]
            lines += [line("eval_stop", None, epoch_num=epoch), line("block_stop", None, **block)]
            written += file.write("".join(lines))
        lines = [line("eval_accuracy", 0.76, epoch_num=epoch), line("run_stop", None, status="success")]
        file.write("".join(lines))
    return count


def _compare(rounds: int, ours: list[str], theirs: list[str] | None, text: str = "") -> dict:
    sides = {"ours": (ours, ""), **({"stock": (theirs, text)} if theirs else {})}
    measured = alternate({side: functools.partial(_measure, *given) for side, given in sides.items()}, rounds)
    return {
        side: {
            "seconds": round(statistics.median(row[0] for row in rows), 3),
            "processor_seconds": round(statistics.median(row[1] for row in rows), 3),
            "all_seconds": [round(row[0], 3) for row in rows],
            "megabytes": round(max(row[2] for row in rows), 1),
        }
        for side, rows in measured.items()
    }


def main() -> None:
    """Measures, prints a table and writes the result file."""
    parser = scripts.parser(__doc__, rounds=5)
    parser.add_argument("--logs", type=Path, help="the unpacked v0.7 subset (a folder with <org>/results/)")
    parser.add_argument("--logs-v5", type=Path, help="a checkout of mlcommons/training_results_v5.0")
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("-o", "--output", type=Path, default=RESULTS / "compliance.json")
    options = parser.parse_args()
    about = {**head(), "mlperf_logging": version("mlperf-logging"), "rounds": options.rounds}
    check = [sys.executable, "-m", "timetotrain", "check"]
    stock = [sys.executable, "-m", "mlperf_logging.compliance_checker"]
    stock += ["--ruleset", "0.7.0", "--log_output", os.devnull]
    rows: dict[str, dict] = {}
    with tempfile.TemporaryDirectory() as folder:
        small, big = Path(folder) / "small.txt", Path(folder) / "big.txt"
        generate(small, 40_000)
        lines = generate(big, options.megabytes * 1_000_000)
        rows["one log of 40 kB from the shell"] = _compare(
            options.rounds, [*check, str(small)], [*stock, str(small)]
        )
        if options.logs is not None:
            paths = sorted(map(str, options.logs.glob("*/results/**/result_*")))
            in_process = [sys.executable, "-c", _STOCK_TREE, "0.7.0"]
            name = f"{len(paths)} published v0.7 logs"
            rows[name] = _compare(options.rounds, [*check, str(options.logs)], in_process, "\n".join(paths))
        if options.logs_v5 is not None:
            paths = sorted(map(str, options.logs_v5.glob("*/results/*/*/result_*.txt")))[:_LOGS_V5]
            in_process = [sys.executable, "-c", _STOCK_TREE, "5.0.0"]
            rows[f"{len(paths)} published v5.0 logs"] = _compare(
                min(options.rounds, 3), [*check, "--ruleset", "5.0.0", *paths], in_process, "\n".join(paths)
            )
            one = [*stock[:3], "--ruleset", "5.0.0", "--log_output", os.devnull, paths[0]]
            rows["one published v5.0 log from the shell"] = _compare(options.rounds, [*check, paths[0]], one)
        name = f"a log of {options.megabytes} MB, {lines:,} lines"
        rows[name] = _compare(min(options.rounds, 3), [*check, str(big)], [*stock, str(big)])
    for name, row in rows.items():
        columns = (("seconds", "s"), ("processor_seconds", "s of processor"), ("megabytes", "MB"))
        figures = (
            f"{side} " + ", ".join(f"{one[key]:.2f} {unit}" for key, unit in columns)
            for side, one in row.items()
        )
        print(f"{name}: {'; '.join(figures)}")
    write({**about, "rows": rows}, options.output)


if __name__ == "__main__":
    main()
