"""Lists the benchmarks' presets for systems/, which does not depend on any benchmark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from common.config import benchmarks
from common.config.schema import RunConfig
from common.errors import UserError
from systems.compile.targets import kind_of_preset

# Ordered by the work of compiling one program.
CHEAPEST_FIRST = (
    "mnist", "ptb", "resnet", "ssd", "maskrcnn", "gnmt", "transformer", "tsm_kinetics", "llama31_8b",
)  # fmt: skip


def load(benchmark: str) -> Mapping[str, RunConfig]:
    """Returns a benchmark's presets by name; {} if it has none yet."""
    return getattr(benchmarks.module(benchmark, "presets"), "PRESETS", {})


def to_compile(names: Sequence[str] = CHEAPEST_FIRST) -> Iterator[tuple[str, str, str]]:
    """Yields (benchmark, system, device kind) for every preset whose machine has TPUs or GPUs."""
    for benchmark in names:
        for system, config in sorted(
            load(benchmark).items(), key=lambda item: (item[1].num_replicas, item[0])
        ):
            try:
                yield benchmark, system, kind_of_preset(config)
            except UserError:  # A machine with neither.
                continue
