"""Lists a run's flags: those of `python -m BENCHMARK`, and the additional ones of `timetotrain run`.

Each class is a table of flags (timetotrain/flags.py). TensorFlow-free.
"""

import dataclasses

from common.config.validation import LARGEST_SEED, REPLICAS
from timetotrain.flags import FILE, FOLDER, flag
from timetotrain.launch import commands


@dataclasses.dataclass(frozen=True)
class Trained:
    """Flags that choose what a run trains.

    Attributes:
      system: preset to run, see BENCHMARK/presets.py. `here` fits this machine and your data. By default the data
        decide: `here` for your own data, cpu-tiny for generated data.
      target: quality at which the run ends, replaces the preset's; none: no target.
      seed: seed of the run, replaces the preset's.
      replicas: backend, replaces the preset's.
    """

    system: str | None = None
    target: str | None = None
    seed: int | None = flag(None, bounds=(0, LARGEST_SEED))
    replicas: str | None = flag(None, choices=REPLICAS)


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """Flags that do not change what a run computes.

    Attributes:
      data_dir: folder with the data made by init_datasets.sh or `timetotrain data`.
      result_dir: results go to RESULT_DIR/<system>/<benchmark>/.
      run: number of the result file; default: the first free one.
      checkpoint_dir: save checkpoints here, and resume from the newest one in it.
      checkpoint_minutes: save a checkpoint every so many minutes within a block too; 0: only between blocks.
      guard_steps: compare the replicas' weights after every so many steps; 0: never.
      keep_checkpoints: how many of the newest checkpoints to keep.
      profile_steps: record a trace of the steps A:B for TensorBoard's profiler beside the log.
      cache_cleared: state that the system's caches were cleared before this run; --clear_caches sets it.
      allow_cpu: train on the CPU if the preset's GPUs, or NCCL, are missing.
    """

    data_dir: str | None = flag(None, path=FOLDER)
    result_dir: str = flag("results", path=FOLDER)
    run: int | None = flag(None, bounds=(0,))
    checkpoint_dir: str | None = flag(None, path=FOLDER)
    checkpoint_minutes: float = 10.0
    guard_steps: int = flag(1000, bounds=(0,))
    keep_checkpoints: int = flag(2, bounds=(1,))
    profile_steps: str | None = None
    cache_cleared: bool = False
    allow_cpu: bool = False


@dataclasses.dataclass(frozen=True)
class BenchmarkFlags(RunOptions, Trained):
    """The flags of `python -m BENCHMARK`.

    Attributes:
      evaluate: evaluate this checkpoint and print its quality as JSON; no training.
      describe: print model, sizes and hyperparameters as JSON; needs no data.
      dry_run: build, compile and take one step on synthetic data.
      export: write one replica's steps as StableHLO into this folder; needs no data.
      export_reference: how to compute the exported step's first losses; uncompiled is several times as fast on a CPU.
      export_programs: which steps to export: both, train, eval, or a single one by name, such as train-2.
      export_values: without: omit first values and losses; the programs can be compiled but not replayed.
    """

    evaluate: str | None = flag(None, path=FILE)
    describe: bool = False
    dry_run: bool = False
    export: str | None = flag(None, path=FOLDER)
    export_reference: str = flag("compiled", choices=("compiled", "uncompiled", "none"))
    export_programs: str = "both"
    export_values: bool = True


@dataclasses.dataclass(frozen=True)
class RunFlags(commands.Options, BenchmarkFlags):
    """The flags of `timetotrain run BENCHMARK`.

    Attributes:
      launcher: what starts the processes; auto uses the preset's own.
      runs: number of runs, with the seeds --seed, --seed + 1, ...
      generate: generate the practice data of cpu-tiny into DATA_DIR, or use DATA_DIR as it is; default: generate if
        the folder is new, empty or already generated.
      clear_caches: drop the system's page cache before each run; needs root.
      print_command: print the command without running it.
      folder: where relative paths start; default: the current folder.
    """

    launcher: str = flag("auto", choices=("auto", *commands.LAUNCHERS))
    runs: int = flag(1, bounds=(1,))
    generate: bool | None = None
    clear_caches: bool = False
    print_command: bool = False
    folder: str | None = flag(None, path=FOLDER)
