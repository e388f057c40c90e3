"""Predicts a preset's time to train: builds its workload, and picks the closest preset for another machine."""

from __future__ import annotations

import math
from typing import Any

import systems
from common.config.clock import Clock
from common.config.schema import RunConfig
from common.errors import UserError, near
from systems.predict import chips, hardware, predictor
from systems.predict.answer import Answer, WhatIf
from systems.predict.chips import Given
from systems.predict.workload import BENCHMARKS, HOST_EVALUATION, SEARCH, Workload
from timetotrain.forecast import presets

_NETWORKS = {"mnist": "mnist_lstm", "ptb": "ptb_lstm", "ssd": "ssd", "maskrcnn": "maskrcnn", "gnmt": "gnmt"}


def predict(
    benchmark: str,
    system: str,
    what_if: WhatIf | None = None,
    assume: bool = False,
    hypothetical: bool = False,
    given: Given | None = None,
) -> Answer:
    """Predicts a benchmark's time to train on a system.

    Args:
      benchmark: a benchmark's name.
      system: a preset, a system, or a system's JSON file.
      what_if: changes to the preset; None for none.
      assume: use defaults for required fields that the JSON lacks.
      hypothetical: allow machines larger than any existing one of their kind.
      given: the user's figures of the accelerator.

    Raises:
      UserError: a name is unknown, a field is missing, or values contradict each other.
    """
    notes: list[str] = []
    config, description = _start(benchmark, system, notes)
    return predictor.predict(
        workload_of(config),
        description,
        config.system,
        what_if,
        own=system == config.system,
        assume=assume,
        hypothetical=hypothetical,
        given=given,
        notes=notes,
    )


def known(system: str) -> bool:
    """Whether the model knows the accelerator of a preset, a system, or a system's JSON file.

    Raises:
      UserError: a file cannot be read.
    """
    return not system.endswith(".json") or bool(chips.recognise(hardware.load(system)))


def workload_of(config: RunConfig) -> Workload:
    """Returns the workload of a run's configuration."""
    clock = Clock.of(config)
    communication, benchmark = config.communication, config.benchmark
    network = _NETWORKS.get(benchmark, config.model)
    steps, beams = SEARCH.get(benchmark, (0, 1))
    *earlier, first = config.eval_epochs or (config.first_block_epochs or config.epochs_per_block,)
    published = benchmark in ("resnet", "ssd", "maskrcnn", "transformer", "gnmt") and not _is_study(config)
    recipe = "v0.6" if config.ruleset == "0.6.0" else "v0.7" if published else "fixed"
    return Workload(
        benchmark=benchmark,
        network=network,
        recipe=recipe,
        batch=config.global_batch_size,
        cores=config.num_replicas,
        examples=config.examples_per_epoch,
        eval_examples=config.examples_per_evaluation * getattr(config, "views", 1),
        eval_batch=config.eval_batch_size * getattr(config, "views", 1),
        partitions=config.partitions,
        accumulation=config.accumulation_steps,
        span=getattr(config, "bn_span", 0),
        precision=config.precision,
        wire=4 if communication.wire == "full" else 2,
        shard_update=communication.shard_weight_update,
        optimizer=config.optimizer.name,
        first_evaluation=max(first, 1e-6),
        evaluation_every=max(config.epochs_per_block, 1e-6),
        earlier_evaluations=tuple(earlier),
        epochs=None if published else clock.train_steps / clock.steps_per_epoch,
        decode_steps=steps,
        beams=beams,
        host_evaluation=HOST_EVALUATION.get(benchmark, 0.0),
        decoded_cache=getattr(getattr(config, "data", None), "cache", "") == "decoded",
        frames=getattr(config, "frames", 8) / 8,
    )


def _is_study(config: RunConfig) -> bool:
    """Whether the run has a fixed number of epochs and a target that differs from MLPerf's."""
    return config.smoke_run or config.hardware.startswith("cpu")


def _start(benchmark: str, system: str, notes: list[str]) -> tuple[RunConfig, dict[str, Any]]:
    """Returns the starting configuration and the machine's description."""
    if benchmark not in BENCHMARKS:
        raise UserError(
            f"benchmark {benchmark!r}: unknown{near(benchmark, BENCHMARKS)}; known: {', '.join(BENCHMARKS)}"
        )
    known = presets.of(benchmark)
    if system in known:
        config = known[system]
        return config, systems.load(config.hardware)
    if not system.endswith(".json") and system not in systems.names():
        both = [*known, *systems.names()]
        raise UserError(
            f"--system={system}: neither a preset nor a system{near(system, both)}; `timetotrain systems list`"
        )
    description = hardware.load(system)
    usable = {
        name: c
        for name, c in known.items()
        if not c.smoke_run and not c.hardware.startswith(("cpu", "local"))
    }
    usable = usable or known
    if not usable:
        raise UserError(f"{benchmark}: has no presets yet; predict another benchmark")
    kind = "tpu" if "tpu" in str(description.get("accelerator_model_name", "")).lower() else "v100"
    alike = {n: c for n, c in usable.items() if c.hardware.startswith("tpu") == (kind == "tpu")} or usable
    size = systems.size(description)[1] or 1
    name = min(
        alike, key=lambda n: abs(math.log((systems.size(systems.load(alike[n].hardware))[1] or 1) / size))
    )
    notes.append(f"{benchmark} has no preset for {system}: batch and hyperparameters are those of {name}")
    return alike[name], description
