"""The command line every benchmark shares: `python -m resnet --system=cpu-tiny --data_dir=DIR`.

TensorFlow is imported only once the arguments have proved sound.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import os
import pathlib
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any

from absl import app as absl_app
from absl import flags

from common import config as configs
from common import log as logs
from common import results
from common.config import RunConfig
from common.errors import UserError
from common.report import Reporter

FLAGS = flags.FLAGS
NOT_REACHED = 1


def _define_flags() -> None:
    flags.DEFINE_string("system", None, "preset to run; see BENCHMARK/config.py")
    flags.DEFINE_string("data_dir", None, "folder with the data that init_datasets.sh prepared")
    flags.DEFINE_string("result_dir", "results", "results go to RESULT_DIR/<system>/<benchmark>/")
    flags.DEFINE_integer(
        "run", None, "number of the result file; the first free one if not given", lower_bound=0
    )
    flags.DEFINE_integer("seed", None, "seed of the run, in place of the preset's", lower_bound=0)
    flags.DEFINE_string("checkpoint_dir", None, "save checkpoints here, and resume from the newest one found")
    flags.DEFINE_enum("replicas", None, list(configs.REPLICAS), "backend, in place of the preset's")
    flags.DEFINE_bool(
        "cache_cleared", False, "the system's caches were cleared before this run; run_and_time.sh knows"
    )
    flags.DEFINE_bool("describe", False, "print model, sizes and hyperparameters as JSON; needs no data")
    flags.DEFINE_bool("dry_run", False, "build, compile and take one step on synthetic data")


def main(benchmark: str) -> None:
    """Runs the command line of `benchmark`, a package with config.py and task.py; does not return."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    _define_flags()
    absl_app.define_help_flags()
    try:
        overrides, argv = configs.split_overrides(sys.argv)
        extra = FLAGS(argv)[1:]
        if extra:
            raise UserError(f"unexpected argument {extra[0]!r}; flags start with --, see --help")
        code = _dispatch(benchmark, overrides)
    except flags.Error as error:
        _fail(f"{error}; see --help", 2)
    except UserError as error:
        _fail(str(error), error.exit_code)
    except BrokenPipeError:  # The reader of our output has seen enough.
        os._exit(141)
    # TensorFlow's threads can keep a finished process alive; nothing is left to flush but the streams.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _fail(message: str, code: int) -> None:
    print(f"error: {message}", file=sys.stderr, flush=True)
    os._exit(code)


def _dispatch(benchmark: str, overrides: Sequence[tuple[str, str]]) -> int:
    module = importlib.import_module(f"{benchmark}.config")
    config = _configure(module, overrides)
    if FLAGS.describe:
        from common.describe import describe

        task = importlib.import_module(f"{benchmark}.task").Task(config, None)
        print(json.dumps(describe(task, module.hyperparameters(config)), indent=2))
        return 0
    if FLAGS.dry_run:
        task_module = importlib.import_module(f"{benchmark}.task")
        return _dry_run(task_module.Task(config, None))
    if FLAGS.system is None:
        raise UserError(f"--system: name a preset; known: {', '.join(module.PRESETS)}")
    _check_data_dir(FLAGS.data_dir, benchmark)
    run = Run(benchmark, config, module.hyperparameters(config))
    return run.execute()


def _check_data_dir(path: str | None, benchmark: str) -> None:
    fix = f"name the folder that {benchmark}/init_datasets.sh filled"
    if not path:
        raise UserError(f"--data_dir: missing; {fix}")
    # An object store is looked at later, by TensorFlow.
    if "://" not in path and not os.path.isdir(path):
        raise UserError(f"--data_dir={path}: no such folder; {fix}")


def _configure(module: Any, overrides: Sequence[tuple[str, str]]) -> RunConfig:
    config = configs.preset(module.PRESETS, FLAGS.system) if FLAGS.system else module.Config()
    if FLAGS.replicas:
        config = configs.override(config, "replicas", FLAGS.replicas)
    for path, value in overrides:
        config = configs.override(config, path, value)
    if FLAGS.seed is not None:
        config = dataclasses.replace(config, seed=FLAGS.seed)
    config.validate()
    return config


def _dry_run(task: Any) -> int:
    from common import replicas
    from common.loop import Loop

    started = time.time()
    loop = Loop(task, replicas.make(task.config))
    built = time.time()
    loss, seconds = loop.one_step()
    print(json.dumps({"loss": loss, "build_seconds": built - started, "step_seconds": seconds}))
    return 0


class Run:
    """One timed run: its log, checkpoint, picture and run.json."""

    def __init__(self, benchmark: str, config: RunConfig, hyperparameters: logs.Hyperparameters):
        self.benchmark, self.config, self.hyperparameters = benchmark, config, hyperparameters
        self.folder = pathlib.Path(FLAGS.result_dir) / config.system / config.benchmark
        self.index = self._free_index() if FLAGS.run is None else FLAGS.run
        self.path = self.folder / f"result_{self.index}.txt"
        if self.path.exists():
            raise UserError(f"{self.path}: exists; give another --run or --result_dir, or move it away")
        self.reporter = Reporter(config)
        self.curve = results.Curve(config)
        self.loop: Any = None
        self._signal = 0
        self._start = 0

    def _free_index(self) -> int:
        taken = {p.name for p in self.folder.glob("result_*.txt")}
        return next(i for i in range(len(taken) + 1) if f"result_{i}.txt" not in taken)

    def execute(self) -> int:
        """Returns the exit status: 0 when the target was reached."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        log = logs.RunLog(self.path, self.config, _checker(self.config))
        try:
            log.header(self.hyperparameters, FLAGS.cache_cleared)
            self._initialise()
            self._start = self._resume()
            log.init_stop(self._start)
            stopped = self._train(log)
            log.publish()
        except BaseException as error:
            self._failed(log, error)
            raise
        return self._finish(stopped)

    def _failed(self, log: logs.RunLog, error: BaseException) -> None:
        """Ends the log of a run that an exception ended; raises in its place what a person can act on."""
        self.reporter.close()
        failed = time.time()
        explained = None if isinstance(error, UserError) else self._explain(error)
        if log.started:
            log.abort(str(explained or error) or type(error).__name__, failed)
            with contextlib.suppress(UserError):  # The disk may be full: the log matters more.
                self._write_record("aborted", None)
        else:
            log.discard()
        if explained:
            raise explained from error

    def _explain(self, error: BaseException) -> UserError | None:
        from tensorflow import errors

        if isinstance(error, errors.ResourceExhaustedError):
            return UserError("out of memory; use a smaller --config.global_batch_size, or more replicas", 1)
        if isinstance(error, errors.OpError) and self.loop is not None:
            self.reporter.say("a step failed: looking for damaged data")
            return self.loop.task.diagnose(error)
        return None

    def _on_signal(self, number: int, _: Any) -> None:
        name = signal.Signals(number).name
        self._signal = number
        if self.loop is None:
            raise UserError(f"{name} during initialisation: nothing was trained", 128 + number)
        self.loop.stop(name)

    def _initialise(self) -> None:
        self.reporter.say(f"{self.benchmark} on {self.config.system}, seed {self.config.seed}: initialising")
        task_module = importlib.import_module(f"{self.benchmark}.task")
        from common import replicas
        from common.loop import Loop

        task = task_module.Task(self.config, FLAGS.data_dir)
        task.check_input()
        loop = Loop(task, replicas.make(self.config))
        loop.compile()
        self.loop = loop

    def _resume(self) -> int:
        if not FLAGS.checkpoint_dir:
            return 0
        from common import checkpoint

        start = checkpoint.restore_latest(self.loop, FLAGS.checkpoint_dir) or 0
        if start:
            self.reporter.say(f"resumed from step {start}: this run gives no time to train")
        return start

    def _save(self, step: int) -> None:
        from common import checkpoint

        checkpoint.save(self.loop, FLAGS.checkpoint_dir)

    def _train(self, log: logs.RunLog) -> Any:
        save = self._save if FLAGS.checkpoint_dir else None
        event = None
        for event in self.loop.run(save):
            log.record(event)
            self.curve.record(event)
            self.reporter.record(event)
        return event

    def _finish(self, stopped: Any) -> int:
        success = stopped.status == "success"
        scored = success and not self._start
        minutes = (stopped.time - self.curve.start) / 60
        curve = self.curve.draw(self.folder / f"curve_{self.index}.png")
        self._write_record(stopped.status, minutes if scored else None)
        print(f"result   {self.path}")
        print(f"score    {minutes:.3f} minutes" if scored else f"score    none: {stopped.status}")
        print(f"verdict  {_verdict(self.path)}")
        print(f"curve    {curve}")
        if success:
            return 0
        return 128 + self._signal if self._signal else NOT_REACHED

    def _write_record(self, status: str, minutes: float | None) -> None:
        from systems import detect

        record = results.describe_run(self.config, sys.argv, detect()[0])
        record |= {
            "status": status,
            "score_minutes": minutes,
            "quality": self.curve.evaluations[-1][1] if self.curve.evaluations else None,
            "started": self.curve.started_iso,
            "resumed_from_step": self._start,
        }
        results.update_run_json(self.folder, self.path, record)


def _checker(config: RunConfig) -> Any:
    from compliance.engine import StreamChecker

    return StreamChecker(config.ruleset, config.benchmark, config.division)


def _verdict(path: pathlib.Path) -> str:
    from compliance.check import check_paths

    findings = check_paths([path])
    errors = [f for f in findings if f.severity == "error"]
    if not errors:
        return f"passes, {len(findings)} pieces of advice (python -m compliance check {path})"
    return f"{len(errors)} errors: {errors[0].message} (python -m compliance check {path})"
