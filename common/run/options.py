"""What a run is told besides its configuration: where its data lies, where its results go, what it saves."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """The flags of a run that decide nothing of what it computes; `python -m BENCHMARK --help` says each in a line.

    Attributes:
      data_dir: folder with the data; None where none is needed.
      result_dir: results go to RESULT_DIR/<system>/<benchmark>/.
      run: number of the result file; None is the first free one.
      checkpoint_dir: checkpoints are saved here, and the newest one found is resumed; None saves none.
      keep_checkpoints: so many of the newest checkpoints stay.
      cache_cleared: the system's caches were cleared before this run.
    """

    data_dir: str | None = None
    result_dir: str = "results"
    run: int | None = None
    checkpoint_dir: str | None = None
    keep_checkpoints: int = 2
    cache_cleared: bool = False
