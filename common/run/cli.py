"""The command line every benchmark shares: `python -m resnet --system=cpu-tiny --data_dir=DIR`.

TensorFlow is imported only once the arguments have proved sound.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
import traceback
from collections.abc import Sequence
from typing import Any

from absl import flags

from common.config import backend, benchmarks, here, own_data
from common.config import overrides as configs
from common.config.schema import LARGEST_SEED, REPLICAS, RunConfig
from common.errors import PeerLostError, UserError
from common.files import ROOT
from common.launch import process as processes
from common.launch.watch import heartbeat
from common.run import closed_division
from common.run import help as helps
from common.run.options import RunOptions

FLAGS = flags.FLAGS


def _define_flags() -> None:
    flags.DEFINE_string(
        "system",
        None,
        "preset to run; see BENCHMARK/presets.py. `here`, which your own data take: chosen for this machine and data",
    )
    flags.DEFINE_string(
        "target", None, "quality at which the run ends, in place of the preset's; none: no target"
    )
    flags.DEFINE_string(
        "data_dir", None, "folder with the data that init_datasets.sh or `timetotrain data` made"
    )
    flags.DEFINE_string("result_dir", "results", "results go to RESULT_DIR/<system>/<benchmark>/")
    flags.DEFINE_integer(
        "run", None, "number of the result file; the first free one if not given", lower_bound=0
    )
    flags.DEFINE_integer(
        "seed", None, "seed of the run, in place of the preset's", lower_bound=0, upper_bound=LARGEST_SEED
    )
    flags.DEFINE_string("checkpoint_dir", None, "save checkpoints here, and resume from the newest one found")
    flags.DEFINE_integer("keep_checkpoints", 2, "so many of the newest checkpoints stay", lower_bound=1)
    flags.DEFINE_string(
        "tensorboard_dir", None, "write loss, learning rate, rate and quality for TensorBoard here"
    )
    flags.DEFINE_string(
        "profile_steps",
        None,
        "keep a trace of the steps A:B for TensorBoard beside the log, and say what it shows",
    )
    flags.DEFINE_integer(
        "examples",
        0,
        "keep so many evaluated examples, right and wrong, as pictures beside the log",
        lower_bound=0,
    )
    flags.DEFINE_string("evaluate", None, "evaluate this checkpoint, print its quality as JSON; no training")
    flags.DEFINE_enum("replicas", None, list(REPLICAS), "backend, in place of the preset's")
    flags.DEFINE_bool(
        "cache_cleared", False, "the system's caches were cleared before this run; set by run_and_time.sh"
    )
    flags.DEFINE_bool("allow_cpu", False, "train on the CPU where a preset's GPUs, or NCCL, are missing")
    flags.DEFINE_bool("describe", False, "print model, sizes and hyperparameters as JSON; needs no data")
    flags.DEFINE_bool("dry_run", False, "build, compile and take one step on synthetic data")
    flags.DEFINE_string(
        "export", None, "write one replica's steps as StableHLO into this folder; needs no data"
    )
    flags.DEFINE_enum(
        "export_reference",
        "compiled",
        ["compiled", "uncompiled", "none"],
        "what computes the exported step's first losses; uncompiled is several times as fast on a CPU",
    )
    flags.DEFINE_string(
        "export_programs",
        "both",
        "which steps are exported: both, train, eval, or one by its name, as train-2",
    )
    flags.DEFINE_bool(
        "export_values",
        True,
        "without: no first values and no losses; the programs can be compiled, not replayed",
    )


def defined() -> list[flags.Flag]:
    """Returns the flags of this command line, in their order."""
    if "system" not in FLAGS:
        _define_flags()
    return FLAGS.get_flags_for_module(__name__)


def main(benchmark: str) -> None:
    """Runs the command line of `benchmark`, a package with config.py and task.py; does not return."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    heartbeat.start()
    try:
        known = defined()
        if helps.asked(sys.argv[1:]):
            helps.print_help(benchmark, benchmarks.module(benchmark, "presets"), known, sys.argv[1:])
            sys.stdout.flush()
            os._exit(0)
        overrides, argv = configs.split_overrides(sys.argv)
        extra = FLAGS(argv)[1:]
        if extra:
            raise UserError(f"unexpected argument {extra[0]!r}; flags start with --, see --help")
        code = _dispatch(benchmark, overrides)
    except flags.Error as error:
        _fail(f"{error}; see --help", 2)
    except PeerLostError as error:  # The launcher knows the cause better.
        _fail(str(error), error.exit_code, lost=True)
    except UserError as error:
        _fail(str(error), error.exit_code)
    except BrokenPipeError:  # The reader of the output has closed it.
        os._exit(141)
    except Exception as error:
        if processes.here().count == 1:
            raise
        # The interpreter's own exit can wait for the other processes while they wait for this one.
        traceback.print_exc()
        _fail(f"{type(error).__name__}: {str(error).partition(os.linesep)[0]}", 1)
    heartbeat.tell(result=code)
    # TensorFlow's threads can keep a finished process alive; nothing is left to flush but the streams.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _fail(message: str, code: int, lost: bool = False) -> None:
    """Ends this process at once, since others may wait for it. The launcher, where there is one, prints the message."""
    if not heartbeat.tell(**{"lost" if lost else "error": message}):
        print(f"{processes.here().prefix}error: {message}", file=sys.stderr, flush=True)
    os._exit(code)


def _dispatch(benchmark: str, overrides: Sequence[tuple[str, str]]) -> int:
    module = benchmarks.module(benchmark, "presets")
    if FLAGS.system is None and (fitting := here.fitting(FLAGS.data_dir)):
        FLAGS.system = fitting
        if processes.here().main:
            print(here.taken(fitting, FLAGS.data_dir), file=sys.stderr)
    config, chosen = _configure(module, overrides)
    if FLAGS.describe:
        from common.train.describe import describe

        task = benchmarks.module(benchmark, "task").Task(config, None)
        print(json.dumps({**describe(task, module.hyperparameters(config)), **_said(chosen)}, indent=2))
        return 0
    if FLAGS.dry_run:
        task_module = benchmarks.module(benchmark, "task")
        return _dry_run(task_module.Task(config, None), _said(chosen))
    if FLAGS.export:
        return _export(benchmarks.module(benchmark, "task").Task, config)
    if FLAGS.system is None:
        raise no_system(benchmark, FLAGS.data_dir)
    check_data_dir(FLAGS.data_dir, benchmark)
    if FLAGS.evaluate:
        return _evaluate(benchmarks.module(benchmark, "task").Task(config, FLAGS.data_dir))
    from common.run import run

    preset = (
        _configure(module, [])[0] if chosen else configs.preset(module.PRESETS, FLAGS.system)
    )  # `here` is none.
    closed_division.check(config, preset, module.hyperparameters)
    process = processes.of(config)
    taken = config.replicas != preset.replicas and not backend.given(FLAGS.replicas, overrides)
    if process.main and taken and not chosen:
        print(backend.TAKEN, file=sys.stderr)
    if not FLAGS.allow_cpu:
        from common.run import devices

        devices.check(config)
    if not process.main:
        return run.Training(benchmark, config, _options(), process).execute()
    changed = closed_division.overrides(config, preset)
    facts = {"config_overrides": changed, **_said(chosen)}
    return run.Run(benchmark, config, _options(), process, module.hyperparameters(config), facts).execute()


def no_system(benchmark: str, data: str | None) -> UserError:
    """Returns the error of a run whose preset nobody names, and whose data ask for none."""
    known = ", ".join([here.NAME, *benchmarks.module(benchmark, "presets").PRESETS])
    where = f" for the data in {data}" if data else ""
    return UserError(f"--system: name a preset{where}; known: {known}{_of_own(benchmark)}")


def _of_own(benchmark: str) -> str:
    """Returns how data of one's own are made for a benchmark, as the end of an error."""
    if not (ROOT / benchmark / "own_data.py").is_file():
        return ""
    return f"; of your own files, `timetotrain data {benchmark} FILES OUT` makes a folder that needs none"


def check_data_dir(path: str | None, benchmark: str) -> None:
    """Raises UserError where `--data_dir` is missing or no folder."""
    own = " or `timetotrain data`" if _of_own(benchmark) else ""
    fix = f"name the folder that {benchmark}/init_datasets.sh{own} filled"
    if not path:
        raise UserError(f"--data_dir: missing; {fix}")
    # TensorFlow checks an object store later.
    if "://" not in path and not os.path.isdir(path):
        raise UserError(f"--data_dir={path}: no such folder; {fix}")


def _configure(module: Any, overrides: Sequence[tuple[str, str]]) -> tuple[RunConfig, list[here.Choice]]:
    """Returns the configuration, and what `--system=here` chose of it."""
    overrides = [*_target(module.Config), *overrides]
    if FLAGS.system == here.NAME:
        return here.configure(module, overrides, FLAGS.replicas, FLAGS.seed, FLAGS.data_dir)
    config = configs.configure(
        module.PRESETS, module.Config, FLAGS.system, overrides, FLAGS.replicas, FLAGS.seed, [here.NAME]
    )
    if FLAGS.system is not None:
        config = backend.chosen(config, FLAGS.replicas, overrides)
    return own_data.filled(config, FLAGS.data_dir, overrides), []


def _target(config: type[RunConfig]) -> list[tuple[str, str]]:
    """Returns --target as overrides: one number for every target of the benchmark, or one for each."""
    if FLAGS.target is None:
        return []
    fields, values = config.target_fields, FLAGS.target.split(",")
    if len(values) == 1:
        values *= len(fields)
    if len(values) != len(fields):
        raise UserError(f"--target={FLAGS.target}: give one number, or {len(fields)}: {', '.join(fields)}")
    return list(zip(fields, values))


def _said(chosen: Sequence[here.Choice]) -> dict[str, Any]:
    """Returns what was chosen for this machine and data, for JSON and the log; {} where nothing was."""
    return {"chosen": {c.field: {"value": c.value, "why": c.why} for c in chosen}} if chosen else {}


def _options() -> RunOptions:
    return RunOptions(**{field.name: FLAGS[field.name].value for field in dataclasses.fields(RunOptions)})


def _evaluate(task: Any) -> int:
    from common.run import evaluate_checkpoint

    quality = evaluate_checkpoint.evaluate(task, FLAGS.evaluate)
    if processes.of(task.config).main:
        print(json.dumps({"quality": quality.value, **quality.details}))
    return 0


def _export(task_of: Any, config: RunConfig) -> int:
    from common.export import write
    from common.export.steps import to_export

    task = task_of(to_export(config), None)
    write.write(
        task,
        config,
        FLAGS.export,
        FLAGS.export_reference,
        lambda line: print(line, file=sys.stderr),
        FLAGS.export_programs,
        FLAGS.export_values,
    )
    return 0


def _dry_run(task: Any, said: dict[str, Any]) -> int:
    from common.distributed import replicas
    from common.run import allocator, step_errors
    from common.train.loop import Loop

    allocator.keep_freed_by_steps(task.config)
    process, started = processes.of(task.config), time.time()
    made = replicas.make(task.config)
    with step_errors.steps_explained(made, "global_batch_size"):
        loop = Loop(task, made)
        built = time.time()
        loss, seconds = loop.one_step()
        made.close()
    if process.main:
        seconds = {"build_seconds": built - started, "step_seconds": seconds}
        print(json.dumps({"loss": loss, **seconds, "compiled": str(loop.compiled), **said}))
    return 0
