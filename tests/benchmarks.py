"""Helpers for the tests of several benchmarks: logs of presets, runs of run_and_time.sh, the stock checker."""

import contextlib
import dataclasses
import functools
import importlib
import json
import math
import os
import pathlib
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from mlperf_logging.compliance_checker import mlp_compliance

from common.config import overrides
from common.config.run_length import RunLength
from common.config.schema import RunConfig
from common.train import events
from timetotrain.run import mllog

ROOT = pathlib.Path(__file__).resolve().parents[1]
# Keys that may differ between the logs of equal runs, or of runs that differ only in their seed.
SEED_KEYS = ("seed", "config_digest", "config_overrides")


def wait_for(condition: Callable[[], Any], seconds: float = 60.0) -> None:
    """Returns once `condition` holds; fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.02)


@contextlib.contextmanager
def small_disk(folder: pathlib.Path, kilobytes: int) -> Iterator[pathlib.Path]:
    """A file system of `kilobytes` at `folder`; skips the test where it may not be mounted."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def check_all(task: Any) -> None:
    """Makes a run's checks of its data: those before the clock, and those on it."""
    task.check_input()
    task.check_data()


def one_batch_a_step(config: RunConfig, batch_size: int, shards: int = 1) -> RunConfig:
    """`config` with training and evaluation steps of one batch of `batch_size` from each of `shards` shards."""
    return dataclasses.replace(
        config, global_batch_size=batch_size * shards, eval_batch_size=batch_size * shards
    )


def hyperparameters(config: RunConfig) -> list[tuple[str, Any, dict]]:
    """[(key, value, metadata)] of the hyperparameters in the log header of `config`."""
    return importlib.import_module(f"{config.benchmark}.presets").hyperparameters(config)


def preset_of(name: str) -> RunConfig:
    """The configuration of `BENCHMARK/PRESET`."""
    benchmark, _, system = name.partition("/")
    return importlib.import_module(f"{benchmark}.presets").PRESETS[system]


def header(config: RunConfig, path: str = "", value: str = "") -> dict[str, Any]:
    """{key: value} of the log header of `config`, after `--config.PATH=VALUE` where a path is given."""
    changed = overrides.override(config, path, value) if path else config
    return {key: field for key, field, _ in hyperparameters(changed)}


def decay_end(config: RunConfig) -> int:
    """The step at which the decay of `config` ends."""
    run_length = RunLength.of(config)
    if hasattr(config.schedule, "decay_end"):
        return config.schedule.decay_end(run_length.steps_per_epoch, run_length.train_steps)
    return run_length.train_steps


def assert_follows_legw(config: RunConfig, base: RunConfig, k: float) -> None:
    """Asserts that `config` is `base` at k times the batch: the rate times sqrt(k), the warmup times k."""
    rate, warmup = base.optimizer.base_learning_rate, base.schedule.warmup_epochs
    assert config.global_batch_size == k * base.global_batch_size
    assert config.optimizer.base_learning_rate == pytest.approx(rate * math.sqrt(k))
    assert config.schedule.warmup_epochs == pytest.approx(warmup * k)


def assert_the_flag_gives(config: RunConfig, base: RunConfig, k: int) -> None:
    """Asserts that `--config.legw=k` turns `base` into the preset `config`, and that `--config.legw=1/k` reverts it."""
    new = overrides.override(base, "legw", str(k))
    assert dataclasses.replace(new, system="", source="") == dataclasses.replace(config, system="", source="")
    back = overrides.override(new, "legw", str(1 / k))
    assert (back.global_batch_size, back.schedule) == (base.global_batch_size, base.schedule)
    rate = base.optimizer.base_learning_rate
    assert back.optimizer.base_learning_rate == pytest.approx(rate)


def assert_the_header_says_what_runs(config: RunConfig) -> None:
    """Asserts that the header omits fields that the run does not use, e.g. the momentum of a solver without one."""
    steps = RunLength.of(config).steps_per_epoch
    schedule = dataclasses.replace(config.schedule, warmup_steps=2 * steps)
    warmed = header(dataclasses.replace(config, schedule=schedule))
    assert warmed["opt_learning_rate_warmup_epochs"] == pytest.approx(2.0)
    assert header(config)["opt_learning_rate_warmup_epochs"] == config.schedule.warmup_epochs
    assert header(config)["opt_momentum"] == 0.9
    for name in ("adam", "adagrad", "rmsprop", "adadelta"):
        assert "opt_momentum" not in header(config, "optimizer.name", name)


def assert_the_header_follows(config: RunConfig, *fields: tuple[str, str, str]) -> None:
    """Asserts for each (field, value, key) that the header takes the key's value from the field."""
    for path, value, key in fields:
        assert header(config, path, value)[key] == float(value), path


def scripted_log(
    config: RunConfig,
    path: pathlib.Path,
    reached: float | None = None,
    missed: float | None = None,
    *,
    stop_at: int = -1,
    start: float = 1e9,
    step_seconds: float = 1.0,
    checker: Any = None,
    facts: Mapping[str, Any] | None = None,
    resumed: int = 0,
    aborted: str = "",
) -> pathlib.Path:
    """Writes a whole log, and returns its path: the real header of `config`, then events as the loop sends them.

    The last evaluation gives `reached`, by default the target, the others `missed`, by default a tenth of it, or ten
    times it where lower is better. The run starts at `start`, perhaps from step `resumed`, takes `step_seconds` a step,
    and ends with the block of index `stop_at`; `aborted` is the reason of a run that does not reach its target.
    """
    out = mllog.RunLog(path, config, checker)
    out.header(hyperparameters(config), cache_cleared=True, facts=facts)
    out.init_stop(resumed)
    at = start
    out.record(events.RunStarted(at, 0))
    blocks = list(RunLength.of(config).intervals())
    blocks = blocks[: blocks[stop_at].index + 1]
    target = config.logged_target
    reached = target if reached is None else reached
    if missed is None:
        part = 10 if config.quality.lower_is_better else 0.1
        missed = (
            {name: part * value for name, value in target.items()}
            if isinstance(target, dict)
            else part * target
        )
    for block in blocks:
        last = block is blocks[-1] and not aborted
        out.record(events.BlockStarted(at, block))
        times = [at + step_seconds * i for i in range(1, block.num_steps + 1)]
        out.record(events.Trained(block, [1.0] * block.num_steps, times))
        at = times[-1] + 3
        out.record(events.EvalRan(block, at - 2, at - 1))
        out.record(events.Evaluated(block, at, reached if last else missed, last, {}))
        out.record(events.BlockStopped(at, block))
    out.record(events.RunStopped(at, "aborted" if aborted else "success", blocks[-1].end_step, aborted))
    out.publish()
    return path


def stock_findings(path: pathlib.Path, ruleset: str = "0.7.0") -> list[str]:
    """The complaints of mlperf-logging's checker: keys that occur too often, and messages."""
    mlp_compliance.enqueued_configs.clear()
    checker = mlp_compliance.make_checker("training", ruleset, quiet=False, werror=True)
    checker.check_file(str(path), f"training_{ruleset}/common.yaml")
    return [*checker.overwritable, *checker.not_overwritable]


def broken_rules(config: RunConfig, path: pathlib.Path) -> set[str]:
    """The keys that mlperf-logging's checker rejects in the log of `config` under its ruleset."""
    scripted_log(config, path)
    try:
        return {key_of(finding) for finding in stock_findings(path, config.ruleset)}
    except FileNotFoundError as error:
        # The stock rules of ResNet are one file for each optimizer; it fails for one without.
        assert f"_{config.optimizer.name}.yaml" in str(error)
        return {"opt_name"}


def key_of(finding: str) -> str:
    """The key that a finding of the stock checker is about."""
    match = re.fullmatch(r"\w+", finding) or re.match(r"Failed checks for (\w+) :", finding)
    assert match, finding
    return match[match.re.groups]


def run(
    benchmark: str, data_dir: pathlib.Path, results: pathlib.Path, *flags: str, timeout: float = 900
) -> subprocess.CompletedProcess:
    """Runs BENCHMARK/run_and_time.sh of cpu-tiny; its log is `results` / log_name(benchmark)."""
    environment = {
        **os.environ,
        "SYSTEM": "cpu-tiny",
        "DATA_DIR": str(data_dir),
        "RESULT_DIR": str(results),
        "PYTHON": sys.executable,
    }
    command = [str(ROOT / benchmark / "run_and_time.sh"), *flags]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=timeout, check=False
    )


def runner(benchmark: str, timeout: float = 900) -> Callable[..., subprocess.CompletedProcess]:
    """`run` of one benchmark."""
    return functools.partial(run, benchmark, timeout=timeout)


def assert_reaches_its_target(
    run: Callable[..., subprocess.CompletedProcess], log: str, data_dir: pathlib.Path, results: pathlib.Path
) -> tuple[str, dict[str, dict]]:
    """Asserts that cpu-tiny succeeds, with a log of the open division that the stock checker passes.

    Returns:
      The output of the run, and {key: last record} of its log, `results` / `log`.
    """
    done = run(data_dir, results)
    assert done.returncode == 0, done.stdout + done.stderr
    assert stock_findings(results / log) == []
    last = {record["key"]: record for record in records(results / log)}
    assert last["run_stop"]["metadata"]["status"] == "success"
    assert last["smoke_run"]["value"] is True and last["submission_division"]["value"] == "open"
    return done.stdout, last


def missed(
    run: Callable[..., subprocess.CompletedProcess],
    log: str,
    data_dir: pathlib.Path,
    results: pathlib.Path,
    *flags: str,
) -> list:
    """Runs cpu-tiny with `flags`, asserts that it misses its target, and returns its values of eval_accuracy."""
    done = run(data_dir, results, *flags)
    assert done.returncode == 1, done.stdout + done.stderr
    return values(results / log, "eval_accuracy")


def missed_with(benchmark: str, fault: str, data_dir: pathlib.Path, results: pathlib.Path) -> list:
    """Like `missed`, of cpu-tiny with a fault of tests/faulty.py."""
    environment = {**os.environ, "SYSTEM": "cpu-tiny", "DATA_DIR": str(data_dir), "PYTHON": sys.executable}
    subprocess.run([str(ROOT / benchmark / "init_datasets.sh")], env=environment, check=True)
    command = [sys.executable, "-m", "tests.faulty", benchmark, fault, "--system=cpu-tiny"]
    done = subprocess.run(
        [*command, f"--data_dir={data_dir}", f"--result_dir={results}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=3600,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return values(results / log_name(benchmark), "eval_accuracy")


def untimed_misses(
    run: Callable[..., subprocess.CompletedProcess],
    log: str,
    data_dir: pathlib.Path,
    results: pathlib.Path,
    seeds: Mapping[str, int],
    *flags: str,
    stock: bool = True,
) -> dict[str, list[dict]]:
    """Runs one seed after another; all miss the target and break no other rule. Returns {name: untimed log}.

    `stock`: the stock checker knows the benchmark.
    """
    logs = {}
    for name, seed in seeds.items():
        done = run(data_dir, results / name, f"--seed={seed}", *flags)
        assert done.returncode == 1, done.stderr
        assert "leaked" not in done.stderr  # The evaluation's worker leaks no resource.
        findings = stock_findings(results / name / log) if stock else ["eval_accuracy"]
        assert [key_of(finding) for finding in findings] == ["eval_accuracy"]
        logs[name] = untimed(results / name / log)
    return logs


def log_name(benchmark: str) -> str:
    """The path of the first run's log, relative to the folder of results."""
    return f"cpu-tiny/{benchmark}/result_0.txt"


def records(path: pathlib.Path) -> list[dict]:
    """The records of a log, in order, without the program's own lines of a live round."""
    lines = path.read_text().splitlines()
    return [json.loads(line.removeprefix(":::MLLOG ")) for line in lines if line.startswith(":::MLLOG ")]


def values(path: pathlib.Path, key: str) -> list:
    """The values of all records of a key, in order."""
    return [record["value"] for record in records(path) if record["key"] == key]


def untimed(path: pathlib.Path) -> list[dict]:
    """The records of a log that equal runs share, without times and the keys in SEED_KEYS."""
    lines = [{k: v for k, v in record.items() if k != "time_ms"} for record in records(path)]
    return [record for record in lines if record["key"] not in SEED_KEYS]


def line(key: str, value: Any = None, time_ms: int = 0, **metadata: Any) -> str:
    """A line of a log, with its line end."""
    record = {"namespace": "", "time_ms": time_ms, "event_type": "POINT_IN_TIME", "key": key, "value": value}
    return ":::MLLOG " + json.dumps({**record, "metadata": {"file": "", "lineno": 1, **metadata}}) + "\n"


# Times, speeds and memory differ from run to run, losses and accuracies from machine to machine. All else is compared.
_VARIES = re.compile(
    r"\d+(?:[.,]\d+)*(?= (?:s|min|ms|minutes|GiB|CPU cores|examples/s)\b)"
    r"|(?<=accuracy )\d+(?:\.\d+)?|(?<=loss )\d+(?:\.\d+)?|(?<=score    )[\d.]+"
)


def plain(text: str) -> str:
    """Returns the text without the numbers that vary."""
    return _VARIES.sub("N", text)


def missing(expected: str, printed: str) -> list[str]:
    """Returns the lines of `shown` that `printed` lacks; a line that ends in "..." may go on."""
    have = plain(printed).splitlines()

    def is_there(line: str) -> bool:
        start, dots, _ = plain(line).partition("...")
        return any(text.startswith(start) if dots else text.rstrip() == start.rstrip() for text in have)

    return [line for line in expected.splitlines() if not is_there(line)]
