"""Interprets and checks `batch_norm_span`, the number of images that share batch-norm statistics. TensorFlow-free."""

from typing import Any

from common.errors import UserError


class BatchNormSpan:
    """Mixin of a configuration with the field `batch_norm_span`, where 0 means a replica's micro-batch."""

    batch_norm_span: int
    micro_batch_size: int
    num_groups: int

    @property
    def bn_span(self) -> int:
        """Number of images that share batch-norm statistics, unless these are frozen; logged as model_bn_span."""
        return self.batch_norm_span or self.micro_batch_size

    def single_replica_changes(self) -> dict[str, Any]:
        """Also resets a span larger than a replica's batch: it would wait for other replicas."""
        changes = super().single_replica_changes()
        return changes | {"batch_norm_span": 0} if self.batch_norm_span > self.micro_batch_size else changes

    def validate_span(self) -> None:
        """Raises UserError if the span fits neither a replica's batch nor several replicas, see `span_groups`."""
        span_groups(self.bn_span, self.micro_batch_size, self.num_groups)


def span_groups(span: int, batch: int, replicas: int) -> tuple[int, int]:
    """Returns (groups in a replica's batch, replicas that share a group): one of the two is 1.

    Args:
      span: number of images that share batch-norm statistics, positive.
      batch: images of a replica.
      replicas: their number; replicas that share images count once.

    Raises:
      UserError: the span neither divides `batch` nor is `batch` times a divisor of `replicas`.
    """
    if 0 < span <= batch and batch % span == 0:
        return batch // span, 1
    if span > batch and span % batch == 0 and replicas % (span // batch) == 0:
        return 1, span // batch
    raise UserError(
        f"config.batch_norm_span={span} does not group {replicas} replicas of {batch} images; "
        f"use a divisor of {batch}, or {batch} times a divisor of {replicas}"
    )
