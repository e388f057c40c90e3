"""Interprets and checks `batch_norm_span`, the number of images that share batch-norm statistics. TensorFlow-free."""

from __future__ import annotations

from typing import Any

from common.errors import UserError


class BatchNormSpan:
    """Mixin of a configuration with the field `batch_norm_span`, where 0 means a replica's micro-batch."""

    batch_norm_span: int
    micro_batch_size: int
    num_groups: int

    @property
    def bn_span(self) -> int:
        """Images that share batch-norm statistics, unless these are frozen; logged as model_bn_span."""
        return self.batch_norm_span or self.micro_batch_size

    def single_replica_changes(self) -> dict[str, Any]:
        """Adds to RunConfig's a reset of spans larger than a replica's batch, which would wait for other replicas."""
        changes = super().single_replica_changes()
        return changes | {"batch_norm_span": 0} if self.batch_norm_span > self.micro_batch_size else changes

    def validate_span(self) -> None:
        """Raises UserError unless the span divides a replica's batch or is k batches, where k divides the groups."""
        span, batch = self.bn_span, self.micro_batch_size
        if span > batch:
            fits = span % batch == 0 and self.num_groups % (span // batch) == 0
        else:
            fits = span > 0 and batch % span == 0
        if not fits:
            raise UserError(
                f"config.batch_norm_span={span} does not group {self.num_groups} replicas of {batch} "
                f"images; use a divisor of {batch}, or {batch} times a divisor of {self.num_groups}"
            )
