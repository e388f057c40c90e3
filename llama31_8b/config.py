"""Defines the configuration of Llama 3.1 8B and checks its fields. TensorFlow-free.

REF = mlcommons/training small_llm_pretraining/nemo; NEMO = NVIDIA/NeMo v2.1.0; RULES = mlcommons/training_policies
training_rules.adoc.
"""

import dataclasses
import itertools
import math
from typing import Any, ClassVar

from common.config.closed_fields import rule_field, system_field
from common.config.quality import Measure
from common.config.ranges import at_least, one_of, positive
from common.config.rules import SCHEDULES
from common.config.run_length import RunLength
from common.config.schema import RunConfig
from common.errors import UserError

ORDERS = ("reference", "one_epoch")
ATTENTIONS = ("auto", "fused", "blocks", "plain")
# Sequences between two evaluations (RULES, table of quality targets).
EVALUATION_INTERVAL = 12_288
# Tokens of the published text and of its validation part: the sizes of their .bin files, 4 bytes a token, in
# mlcommons/training_results_v5.1 NVIDIA/benchmarks/llama31_8b/implementations/nemo/expected-mounts-8b.csv.
TRAIN_TOKENS, EVAL_TOKENS = 20_994_193_570, 41_642_091
# The end rate is this part of the peak (RULES, table of hyperparameters).
END_PART = 0.1


@dataclasses.dataclass(frozen=True)
class Data:
    """Text as Megatron's indexed data sets: PREFIX.idx and PREFIX.bin for each split.

    Attributes:
      train_prefix, eval_prefix: the two data sets inside the data folder, without suffix (REF pretrain_llama31.py).
      tokenizer: tokenizer.json inside the data folder; "" if the tokens are bytes.
      bytes_per_token: bytes of the evaluation's text for each of its tokens, for bits per byte; 0 if unknown.
    """

    train_prefix: str = "c4-train.en_6_text_document"
    eval_prefix: str = "c4-validation-91205-samples.en_text_document"
    tokenizer: str = "tokenizer.json"
    bytes_per_token: float = 0.0


@dataclasses.dataclass(frozen=True)
class Config(RunConfig):
    """All settings of a run of Llama 3.1 8B.

    An example is a window of `sequence_length` tokens and the token after it. Windows cross the borders of documents.

    Attributes:
      num_train_examples: windows in one pass over the training text; 20,994,193,570 tokens give 2,562,767.
      num_eval_examples: windows of an evaluation, which rounds up to whole batches where the text has more.
      vocab_size: different tokens, rows of both tables.
      sequence_length: tokens that the network reads at once.
      layers, width: number of layers, and width of the residual stream.
      hidden: width between the products of a feed-forward layer.
      heads, kv_heads: heads of queries; heads of keys and values, each for heads / kv_heads of queries.
      init_std: standard deviation of initial weights; products that add to the residual stream have it divided by the
        root of 2 layers (NEMO init_method_std, Megatron's scaled_init_method_normal).
      order: order of the windows: "reference" mixes several epochs as Megatron does, "one_epoch" shows each document
        once.
      attention: "auto"; "fused", cuDNN's kernel; "blocks" of queries, which keep no scores; "plain".
      recompute: compute each layer again in the backward pass instead of keeping its activations.
      logit_chunks: number of parts of a batch's tokens whose logits exist at the same time; 1 makes all at once.
      shard_weights: whether each replica holds a part of every weight, and layers gather theirs.
    """

    benchmark: str = "llama31_8b"
    ruleset: str = system_field("6.1.0")
    num_train_examples: int = 2_562_767
    num_eval_examples: int = 1024
    global_batch_size: int = 16
    eval_batch_size: int = 16
    train_steps: int = 1_200_000
    quality_target: float | None = 3.3
    vocab_size: int = rule_field(128_256)
    sequence_length: int = 8192
    layers: int = rule_field(32)
    width: int = rule_field(4096)
    hidden: int = rule_field(14_336)
    heads: int = rule_field(32)
    kv_heads: int = rule_field(8)
    init_std: float = rule_field(0.02)
    order: str = system_field("reference")
    attention: str = system_field("auto")
    recompute: bool = system_field(True)
    logit_chunks: int = system_field(8)
    shard_weights: bool = system_field(False)
    data: Data = Data()

    rulesets: ClassVar[tuple[str, ...]] = ("5.1.0", "6.0.0", "6.1.0")
    counted: ClassVar[str] = "sequences"
    partitions: ClassVar[int] = 1  # Only networks of images have parts.
    model: ClassVar[str] = "llama31_8b"
    schedules: ClassVar[tuple[str, ...]] = ("cosine",)
    quality: ClassVar[Measure] = Measure("log perplexity", lower_is_better=True)
    scales_by_legw: ClassVar[bool] = False

    @property
    def sends_weights(self) -> bool:
        return self.shard_weights

    def single_replica_changes(self) -> dict[str, Any]:
        return {**super().single_replica_changes(), "shard_weights": False}

    @property
    def serving_length(self) -> int:
        """Returns the tokens of a text that a trained network sees."""
        return self.sequence_length

    @property
    def reads_bytes(self) -> bool:
        """Whether the tokens are bytes, so that no file describes them."""
        return not self.data.tokenizer

    @property
    def head_size(self) -> int:
        """Returns the width of a head."""
        return self.width // self.heads

    @property
    def examples_per_evaluation(self) -> int:
        """Returns the windows of an evaluation in whole batches; rows that the text cannot fill have weight 0."""
        return -(-self.num_eval_examples // self.eval_batch_size) * self.eval_batch_size

    @property
    def evaluation_steps(self) -> int:
        """Returns the steps between two evaluations of a closed run."""
        return -(-EVALUATION_INTERVAL // self.global_batch_size)

    @property
    def parameters(self) -> int:
        """Returns the number of weights."""
        rows = self.heads + 2 * self.kv_heads
        matrices = rows * self.head_size + self.width + 3 * self.hidden
        return self.width * (self.layers * (matrices + 2) + 2 * self.vocab_size + 1)

    @property
    def state_bytes(self) -> int:
        """Returns the bytes of weights and AdamW's two slots in float32."""
        return 12 * self.parameters

    @property
    def residual_std(self) -> float:
        """Returns the standard deviation of initial weights of products that add to the residual stream."""
        return self.init_std / math.sqrt(2 * self.layers)

    def validate_own_fields(self) -> None:
        """Raises UserError if a field is out of range or fields contradict each other."""
        one_of(self, "order", ORDERS)
        one_of(self, "attention", ATTENTIONS)
        at_least(self, 1, "vocab_size", "sequence_length", "layers", "width", "hidden", "heads", "kv_heads")
        at_least(self, 1, "logit_chunks")
        positive(self, "init_std")
        if self.width % (2 * self.heads):
            raise UserError(
                f"config.width={self.width} does not divide into {self.heads} heads of an even width; "
                f"use a multiple of {2 * self.heads}"
            )
        if self.attention == "fused" and self.precision not in ("bf16", "fp16"):
            raise UserError(
                "config.attention=fused: cuDNN's kernel needs config.precision=bf16 or fp16, not "
                f"{self.precision}; use blocks"
            )
        if self.attention == "fused" and (self.head_size % 8 or self.head_size > 128):
            # jax/_src/cudnn/fused_attention_stablehlo.py.
            raise UserError(
                f"config.attention=fused: cuDNN's kernel takes heads of a multiple of 8 up to 128, not "
                f"{self.head_size}; use blocks"
            )
        if self.sequence_length % self.logit_chunks:
            raise UserError(
                f"config.logit_chunks={self.logit_chunks} does not divide config.sequence_length="
                f"{self.sequence_length}; use a divisor"
            )
        if self.heads % self.kv_heads:
            raise UserError(
                f"config.kv_heads={self.kv_heads} does not divide config.heads={self.heads}; use a divisor"
            )
        if self.shard_weights:
            self._check_sharded_weights()
        if self.division == "closed":
            self._check_closed_values()

    def _check_sharded_weights(self) -> None:
        """Raises UserError if backend, optimizer or another field needs whole weights."""
        field = "config.shard_weights=True"
        if self.replicas != "pjrt":
            raise UserError(f"{field} needs --config.replicas=pjrt, not {self.replicas}")
        if self.communication.weight_update != "whole":
            raise UserError(f"{field} shards the update too; set --config.communication.weight_update=whole")
        if self.optimizer.name == "lazy_adam":
            raise UserError(
                f"{field}: lazy_adam updates rows of a table, which parts do not keep; use --config.optimizer.name=adam"
            )
        if self.optimizer.clip_replica_norm:
            raise UserError(
                f"{field}: gradients arrive summed, so config.optimizer.clip_replica_norm cannot clip; use clip_norm"
            )

    def _check_closed_values(self) -> None:
        """Raises UserError for values that the rules derive from others, and a warmup that the log cannot state."""
        schedule, peak = SCHEDULES.every_field(self.schedule), self.optimizer.base_learning_rate
        if not math.isclose(schedule.end_learning_rate, END_PART * peak, rel_tol=1e-6):
            raise UserError(
                f"config.schedule.end_learning_rate={schedule.end_learning_rate:g}: a closed run ends at a tenth of "
                f"config.optimizer.base_learning_rate={peak:g}; set "
                f"--config.schedule.end_learning_rate={END_PART * peak:g}"
            )
        if schedule.warmup_steps < 1 or schedule.warmup_steps % 1:
            raise UserError(
                f"config.schedule.warmup_steps={schedule.warmup_steps:g}: the log of a closed run states whole steps, "
                "at least 1; set --config.schedule.warmup_steps=17, that of batch 16"
            )
        if schedule.first_step not in (0, 1):
            raise UserError(
                f"config.schedule.first_step={schedule.first_step}: a closed run's first update counts as 1 (NeMo) or "
                "0 (Megatron); set --config.schedule.first_step=1"
            )
        run_length = RunLength.of(self)
        ends = [0, *(steps for steps, _ in run_length.first_evaluations)]
        first = max(end - before for before, end in itertools.pairwise(ends))
        most = self.evaluation_steps
        for name, steps, fix in (
            ("steps_per_block", run_length.steps_per_block, most),
            ("eval_epochs", first, ""),
        ):
            if steps > most:
                raise UserError(
                    f"config.{name}: {steps} steps between evaluations, but a closed run of config.global_batch_size="
                    f"{self.global_batch_size} has at most {most} ({EVALUATION_INTERVAL:,} sequences); set "
                    f"--config.{name}={fix}"
                )
