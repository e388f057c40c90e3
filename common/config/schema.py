"""Defines and validates the fields that every benchmark's configuration has. TensorFlow-free."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from common.config import plugins, quality, validation
from common.config.closed_fields import added_field, rule_field, system_field
from common.config.optimizer import Lars, Optimizer
from common.config.quality import Measure
from common.config.schedule import Constant, Schedule


@dataclasses.dataclass(frozen=True)
class Communication:
    """How a run sums gradients and updates weights; see gradient_sum.py and sharded_update.py in common/distributed/.

    Attributes:
      algorithm: "flat", or "2d": rows, then columns, as in section 2 of the pods paper.
      wire: "full" sends gradients as they are; "bf16_sum" sends bfloat16 and the collective adds in bfloat16
        (published TPU code: `use_bf16_gradients_ar`).
      weight_update: what a replica updates: "whole", all weights; "sharded", 1/N of them (reduce-scatter, update,
        all-gather); "blocks", a block of each weight's rows and columns, cut from the whole sum
        (common/distributed/block_update.py), which avoids copies on TPUs.
    """

    algorithm: str = "flat"
    wire: str = "full"
    weight_update: str = added_field("whole")


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """The fields that every benchmark's configuration has.

    Attributes:
      benchmark: name in the log, e.g. "resnet".
      model: the network; the benchmark's page lists the names.
      system: the preset's name.
      hardware: the machine, described in systems/NAME.json.
      source: where the values come from.
      ruleset, division: MLPerf rules and division that the log names.
      submission_status: availability of the system, for the log: "onprem", "cloud", "preview", "research".
      submission_org: organization that runs it, for the log.
      smoke_run: the run is practice, on generated or small data or with --system=here; its log says so, and packaging
        refuses it.
      seed: seed of everything random.
      precision: "fp32", "bf16", "fp16" (with `loss_scale`) or "fp64".
      loss_scale: factor of the loss during the backward pass; the gradients are divided by it afterwards ("fp16").
      replicas, num_replicas: backend and number of model replicas.
      partitions: number of replicas that share each image, by rows (common/distributed/spatial/); 1 is data
        parallelism alone.
      communication: how the run sums gradients and updates weights.
      global_batch_size: examples per step over all replicas and micro-batches.
      accumulation_steps: micro-batches per step and replica.
      compile: use of XLA: "auto" (with "pjrt" on, else on a CPU off; elsewhere on if backend and network allow it),
        "on" (an error if they do not), "off".
      num_train_examples, num_eval_examples: sizes of the two sets, as logged; the run compares them with the data.
      eval_batch_size: examples per evaluation step, over all replicas.
      train_epochs, train_steps: maximum length of the run; `train_steps` takes precedence unless it is 0.
      steps_per_block: training steps between evaluations; 0 derives it from `epochs_per_block`.
      epochs_per_block: epochs between evaluations.
      eval_epochs: epochs at which the first evaluations take place, if they are unevenly spaced; later ones follow
        every `epochs_per_block`. Their steps are in proportion to `steps_per_block`.
      quality_target: the quality to reach, in the unit of the log. None means no target: the run trains to its end or
        until `patience` ends it, and it is not a result.
      patience: number of evaluations without gain (timetotrain/run/advice.py) that end a run of one process without
        a target (Keras's name); 0: never.
      checkpoint_blocks: blocks between checkpoints, if a checkpoint folder is given.
      init: file of weights to start from, as far as they fit: a checkpoint, or a file that
        common/layers/weight_files.py reads; "" starts as the preset says. `--init=FILE` is short for it.
    """

    benchmark: str = rule_field("")
    model: str = ""
    system: str = system_field("")
    hardware: str = system_field("local")
    source: str = system_field("")
    ruleset: str = rule_field("0.7.0")
    division: str = rule_field("closed")
    submission_status: str = system_field("research")
    submission_org: str = system_field("local")
    smoke_run: bool = rule_field(False)
    seed: int = system_field(0)
    precision: str = system_field("bf16")
    loss_scale: float = system_field(1.0)
    replicas: str = system_field("single")
    num_replicas: int = system_field(1)
    partitions: int = system_field(1)
    communication: Communication = system_field(Communication())
    global_batch_size: int = system_field(1)
    accumulation_steps: int = system_field(1)
    compile: str = system_field("auto")
    num_train_examples: int = rule_field(0)
    num_eval_examples: int = rule_field(0)
    eval_batch_size: int = system_field(1)
    train_epochs: float = system_field(1.0)
    train_steps: int = system_field(0)
    steps_per_block: int = system_field(0)
    epochs_per_block: float = system_field(1.0)
    quality_target: float | None = 0.0
    checkpoint_blocks: int = system_field(1)
    eval_epochs: tuple[float, ...] = added_field((), closed="free")
    patience: int = added_field(0, closed="free")
    init: str = added_field("")
    optimizer: Optimizer = Lars()
    schedule: Schedule = Constant()

    # For benchmarks that can start from a trained network: the field that names its file, and the network from which a
    # closed run must start (timetotrain/run/closed_division.py).
    weights_field: ClassVar[str] = ""
    starts_from: ClassVar[str] = ""
    # The network's stages, starting at the input. Each stage lists the prefixes of its layers' names
    # (common/train/names.py). A benchmark with stages derives from `FrozenStages`, too.
    stages: ClassVar[tuple[tuple[str, ...], ...]] = ()
    frozen_stages: ClassVar[int] = 0
    # How the steps of an epoch are rounded: "ceil" or "floor". A benchmark whose sources differ has it as a field.
    steps_per_epoch_rounding: ClassVar[str] = "ceil"
    # Whether the step of a schedule's drop is rounded down; otherwise the first step at or after it has the lower rate.
    drops_round_down: ClassVar[bool] = False
    # The rounds whose rules a run's log can follow, and what tells people how far a run is, if not epochs.
    rulesets: ClassVar[tuple[str, ...]] = ("0.6.0", "0.7.0")
    counted: ClassVar[str] = ""
    # Whether the flag --config.legw (common/config/legw.py) may scale a preset.
    scales_by_legw: ClassVar[bool] = True
    # The kinds of schedules that it takes, besides "constant" and one of your own.
    schedules: ClassVar[tuple[str, ...]] = ("poly", "step", "cosine", "noam", "gnmt")
    # The quality metric's name and unit (common/config/quality.py), and the fields with its targets.
    quality: ClassVar[Measure] = Measure("quality")
    target_fields: ClassVar[tuple[str, ...]] = ("quality_target",)

    def validate(self) -> None:
        """Checks the fields, before TensorFlow is imported.

        Raises UserError if a later stage would reject a value, or fields contradict each other.
        """
        validation.check_values(self)
        self.validate_own_fields()
        validation.check_stages(self)

    def validate_own_fields(self) -> None:
        """Checks a benchmark's own fields and raises UserError; a benchmark with such fields overrides this."""

    def plugin_functions(self) -> dict[str, str]:
        """Returns {field: MODULE:FUNCTION} of the functions from outside this project."""
        names = {"optimizer.name": self.optimizer.name, "schedule.kind": self.schedule.kind}
        return {field: name for field, name in names.items() if plugins.is_plugin(name)}

    def single_replica(self) -> RunConfig:
        """Returns the configuration of one replica that runs alone: its share of the batch, no communication."""
        changes = self.single_replica_changes()
        # A field that can have one value only is a constant of the benchmark's class.
        fields = {field.name for field in dataclasses.fields(self)}
        alone = dataclasses.replace(self, **{n: value for n, value in changes.items() if n in fields})
        alone.validate()
        return alone

    def single_replica_changes(self) -> dict[str, Any]:
        """Returns {field: value} that `single_replica` changes; a benchmark's override adds its own."""
        return {
            "replicas": "single",
            "num_replicas": 1,
            "partitions": 1,
            "communication": Communication(),
            "global_batch_size": self.global_batch_size // self.num_groups,
            "eval_batch_size": self.eval_batch_size // self.num_groups,
            "compile": "on",
        }

    @property
    def sends_weights(self) -> bool:
        """Whether replicas send each other weights during a step, in the precision of products."""
        return False

    @property
    def num_groups(self) -> int:
        """Number of replica groups; the replicas of a group share examples. Without partitions each is a group."""
        return self.num_replicas // self.partitions

    @property
    def examples_per_epoch(self) -> int:
        """Training examples per epoch in the unit of `global_batch_size`; determines the number of steps.

        A benchmark overrides this if it counts samples and batches in different units (words, sequences).
        """
        return self.num_train_examples

    @property
    def examples_per_evaluation(self) -> int:
        """Evaluation examples in the unit of `eval_batch_size`; a benchmark overrides this for the same reason."""
        return self.num_eval_examples

    @property
    def logged_target(self) -> float | dict[str, float] | None:
        """Target for the logged eval_accuracy, in the same form; a benchmark with several metrics overrides this.

        None: the run has no target.
        """
        return self.quality_target

    def meets_target(self, value: float | Mapping[str, float]) -> bool:
        """Whether an eval_accuracy meets the target, or every target if there are several; False without a target."""
        target = self.logged_target
        if target is None:
            return False
        values, targets = quality.parts(value), quality.parts(target)
        return all(self.quality.reaches(values[name], least) for name, least in targets.items())

    @property
    def initial_weights_file(self) -> str:
        """The file with the initial weights; "" means random weights from the seed."""
        return self.init or (getattr(self, self.weights_field) if self.weights_field else "")

    @property
    def weight_transformations(self) -> str:
        """Transformation of the weights in `initial_weights_file`, in a submission's words."""
        return "kernels transposed to TensorFlow's layout" if self.initial_weights_file else "none"

    @property
    def state_bytes(self) -> int:
        """Bytes of weights and slots of a network too large for a host, each of whose initial weights has its own seed.

        A backend that keeps the state on devices builds, compiles and saves it in parts. 0: a host holds the state.
        """
        return 0

    @property
    def micro_batch_size(self) -> int:
        """Examples that one replica processes at once; with partitions, it holds only its rows of each example."""
        return self.global_batch_size // (self.num_groups * self.accumulation_steps)


@dataclasses.dataclass(frozen=True)
class FrozenStages:
    """Mixin of a configuration whose network can keep its first stages.

    Attributes:
      frozen_stages: number of the network's first stages that stay at their initial weights; `stages` in
        BENCHMARK/config.py lists the stages. `--frozen_stages=N` is short for it.
    """

    frozen_stages: int = added_field(0)
