"""Lists the flags of a run: those of `python -m BENCHMARK`, and those that `timetotrain run` has besides.

Each class is a table of flags (timetotrain/flags.py). TensorFlow-free.
"""

from __future__ import annotations

import dataclasses

from common.config.validation import LARGEST_SEED, REPLICAS
from timetotrain.flags import FILE, FOLDER, flag
from timetotrain.launch import commands


@dataclasses.dataclass(frozen=True)
class Trained:
    """What a run trains.

    Attributes:
      system: preset to run, see BENCHMARK/presets.py. `here` fits this machine and your data. Without it the data
        choose: `here` for your own, cpu-tiny for generated ones.
      target: quality at which the run ends, in place of the preset's; none: no target.
      seed: seed of the run, in place of the preset's.
      replicas: backend, in place of the preset's.
    """

    system: str | None = None
    target: str | None = None
    seed: int | None = flag(None, bounds=(0, LARGEST_SEED))
    replicas: str | None = flag(None, choices=REPLICAS)


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """Flags that do not change what a run computes.

    Attributes:
      data_dir: folder with the data that init_datasets.sh or `timetotrain data` made.
      result_dir: results go to RESULT_DIR/<system>/<benchmark>/.
      run: number of the result file; the first free one if not given.
      checkpoint_dir: save checkpoints here, and resume from the newest one found.
      keep_checkpoints: number of the newest checkpoints that stay.
      tensorboard_dir: write loss, learning rate, rate and quality for TensorBoard here.
      profile_steps: keep a trace of the steps A:B for TensorBoard beside the log, and say what it shows.
      examples: number of evaluated examples, right and wrong, to keep as pictures beside the log.
      cache_cleared: the system's caches were cleared before this run; --clear_caches sets it.
      allow_cpu: train on the CPU where a preset's GPUs, or NCCL, are missing.
    """

    data_dir: str | None = flag(None, path=FOLDER)
    result_dir: str = flag("results", path=FOLDER)
    run: int | None = flag(None, bounds=(0,))
    checkpoint_dir: str | None = flag(None, path=FOLDER)
    keep_checkpoints: int = flag(2, bounds=(1,))
    tensorboard_dir: str | None = flag(None, path=FOLDER)
    profile_steps: str | None = None
    examples: int = flag(0, bounds=(0,))
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
      export_reference: what computes the exported step's first losses; uncompiled is several times as fast on a CPU.
      export_programs: which steps are exported: both, train, eval, or one by its name, as train-2.
      export_values: without: no first values and no losses; the programs can be compiled, not replayed.
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
      launcher: what starts the processes; auto is the preset's own.
      runs: number of runs, with the seeds --seed, --seed + 1, ...
      generate: generate the practice data of cpu-tiny into DATA_DIR, or take DATA_DIR as it is; not given, the folder
        decides: new, empty and generated ones are filled.
      clear_caches: drop the system's page cache before each run; needs root.
      print_command: print the command, run nothing.
      folder: where relative paths start; default: the current folder.
    """

    launcher: str = flag("auto", choices=("auto", *commands.LAUNCHERS))
    runs: int = flag(1, bounds=(1,))
    generate: bool | None = None
    clear_caches: bool = False
    print_command: bool = False
    folder: str | None = flag(None, path=FOLDER)
