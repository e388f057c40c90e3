"""Defines a run's options beside its configuration: the folders of data, results and checkpoints."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """The flags of a run that do not change what it computes, as `python -m BENCHMARK --help` lists them.

    Attributes:
      data_dir: folder with the data; None where none is needed.
      result_dir: results go to RESULT_DIR/<system>/<benchmark>/.
      run: number of the result file; None takes the first free one.
      checkpoint_dir: checkpoints are saved here, and the run resumes from the newest one; None saves none.
      keep_checkpoints: how many of the newest checkpoints stay.
      tensorboard_dir: scalars for TensorBoard go here; None writes none.
      profile_steps: steps A:B of which a trace is kept beside the log (common/train/profile.py); None keeps none.
      examples: so many evaluated examples are kept as pictures beside the log, with what the network said of them.
      cache_cleared: the system's caches were cleared before this run.
      allow_cpu: a preset for GPUs trains on the CPU where it finds none (timetotrain/run/devices.py).
    """

    data_dir: str | None = None
    result_dir: str = "results"
    run: int | None = None
    checkpoint_dir: str | None = None
    keep_checkpoints: int = 2
    cache_cleared: bool = False
    tensorboard_dir: str | None = None
    profile_steps: str | None = None
    examples: int = 0
    allow_cpu: bool = False
