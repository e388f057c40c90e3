"""Runs `python -m BENCHMARK FLAGS`, the training process: `python -m resnet --system=cpu-tiny --data_dir=DIR`.

Imports TensorFlow only after the arguments have passed validation.
"""

import contextlib
import json
import os
import pathlib
import sys
import time
import traceback
from collections.abc import Sequence
from typing import Any, NoReturn

from common.config import automatic, backend, benchmarks, fitting_batch
from common.config.schema import RunConfig
from common.distributed import heartbeat
from common.distributed import process as processes
from common.errors import PeerLostError, UserError, answer, open_closed_streams, outlive_output
from timetotrain import flags
from timetotrain.run import closed_division, data_folder, request, same_start
from timetotrain.run import help as helps
from timetotrain.run.options import BenchmarkFlags


def main(benchmark: str, argv: Sequence[str] | None = None) -> None:
    """Runs the command line of `benchmark` (a package with config.py and task.py); does not return."""
    words = sys.argv[1:] if argv is None else list(argv)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    heartbeat.start()
    open_closed_streams()
    program = f"python -m {benchmarks.command(benchmark)}"
    try:
        if helps.asks_for_help(words):
            same_start.needs_no_others("--help")
            helps.print_help(benchmark, BenchmarkFlags, program, words)
            sys.stdout.flush()
            heartbeat.send(result=0)
            os._exit(0)
        code = run(benchmark, *flags.parse(BenchmarkFlags, words, program))
    except PeerLostError as error:  # The launcher knows the cause better.
        _fail(str(error), error.exit_code, lost=True)
    except BrokenPipeError:  # The output's reader has closed it.
        os._exit(141)
    except Exception as error:
        if not isinstance(error, UserError):
            if processes.current().count == 1:
                raise
            traceback.print_exc()
        same_start.refuse(error, same_start.num_replicas(benchmark, words))
        # The interpreter's normal exit can wait for other processes that in turn wait for this one.
        _fail(*answer(error))
    heartbeat.send(result=code)
    _exit(code)


def _fail(message: str, code: int, lost: bool = False) -> NoReturn:
    """Ends this process at once, since others may wait for it. If there is a launcher, it prints the message."""
    if not heartbeat.send(code=code, **{"lost" if lost else "error": message}):
        print(f"{processes.current().prefix}error: {message}", file=sys.stderr, flush=True)
    _exit(code)


def _exit(code: int) -> NoReturn:
    """Ends this process without Python's exit functions: TensorFlow's threads can keep a finished process alive.

    Flushes the streams, and removes the sources that AutoGraph wrote into the folder for temporary files.
    """
    for name, module in list(sys.modules.items()):
        if name.startswith("__autograph_generated_file") and module.__file__:
            pathlib.Path(module.__file__).unlink(missing_ok=True)
    folder = pathlib.Path(os.environ.get("TMPDIR", ""))
    if folder.name.startswith(heartbeat.SCRATCH) and not heartbeat.send():
        # The launcher was killed; the last of its processes finds the folder empty.
        with contextlib.suppress(OSError):
            folder.rmdir()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(code)


def run(benchmark: str, options: BenchmarkFlags, overrides: Sequence[tuple[str, str]]) -> int:
    """Carries out what the flags ask for; returns the exit status.

    Raises UserError if the configuration or the data are wrong, or the run cannot continue.
    """
    options = request.with_system(options)
    config, choices = request.configure(benchmark, options, overrides)
    hyperparameters = benchmarks.module(benchmark, "presets").hyperparameters
    choice_facts = request.choice_facts(choices)
    for flag in ("describe", "export"):
        if getattr(options, flag):
            same_start.needs_no_others(f"--{flag}")
    if options.describe:
        from common.train.describe import describe

        task = benchmarks.module(benchmark, "task").Task(config, None)
        print(json.dumps({**describe(task, hyperparameters(config)), **choice_facts}, indent=2))
        return 0
    if options.dry_run:
        return _dry_run(benchmarks.module(benchmark, "task").Task(config, None), choice_facts)
    if options.export:
        return _export(benchmarks.module(benchmark, "task").Task, config, options)
    if not options.system:
        raise data_folder.no_system(benchmark, options.data_dir)
    if options.evaluate or processes.current().count == 1:  # Several processes check it together (run.py).
        data_folder.check(options.data_dir, benchmark)
    if options.evaluate:
        task = benchmarks.module(benchmark, "task").Task(config, options.data_dir)
        return _evaluate(task, options.evaluate)
    from timetotrain.run import run
    from timetotrain.run.recorder import Recorder

    preset = request.preset(benchmark, options)
    closed_division.check(config, preset, hyperparameters)
    process = processes.place(config)
    changes_backend = config.replicas != preset.replicas and not backend.is_set(options.replicas, overrides)
    if process.main and changes_backend and not choices:
        print(backend.TAKEN, file=sys.stderr)
    from timetotrain.run import devices

    devices.check_memory(config)
    if not options.allow_cpu:
        devices.check(config)
    outlive_output()
    recorder = None
    if process.main:
        facts = {"config_overrides": closed_division.overrides(config, preset), **choice_facts}
        recorder = Recorder(config, options, process.count, hyperparameters(config), facts)
    return run.Run(benchmark, config, options, process, recorder).execute()


def _evaluate(task: Any, checkpoint: str) -> int:
    from timetotrain.run import evaluate_checkpoint

    quality = evaluate_checkpoint.evaluate(task, checkpoint)
    if processes.place(task.config).main:
        print(json.dumps({"quality": quality.value, **quality.details}))
    return 0


def _export(task_of: Any, config: RunConfig, options: BenchmarkFlags) -> int:
    from common.export import write
    from common.export.steps import to_export
    from timetotrain.launch import commands

    task = task_of(to_export(config), None)
    write.write(
        task,
        config,
        options.export,
        options.export_reference,
        lambda line: print(line, file=sys.stderr),
        options.export_programs,
        options.export_values,
        commands.describe(config.hardware).get("accelerator_model_name", ""),
    )
    return 0


def _dry_run(task: Any, facts: dict[str, Any]) -> int:
    from common.train.probe import Probe
    from common.train.programs import Programs
    from timetotrain.run import allocator, step_errors

    allocator.keep_freed_by_steps(task.config)
    process, started = processes.place(task.config), time.time()
    backend = same_start.join_without_data(task.config)
    with step_errors.steps_explained(backend, "global_batch_size"):
        programs = Programs(task, backend)
        built = time.time()
        loss, seconds, used = Probe(programs).one_step()
        backend.close()
    if process.main:
        times = {"build_seconds": built - started, "step_seconds": seconds, "step_processor_seconds": used}
        memory = {}
        if rule := automatic.rule_of(benchmarks.module(task.config.benchmark, "presets")):
            train, evaluation = fitting_batch.example_bytes(rule, task.config)
            memory = {"example_bytes": round(train), "evaluation_example_bytes": round(evaluation)}
        print(json.dumps({"loss": loss, **times, **memory, "compiled": str(programs.compiled), **facts}))
    return 0
