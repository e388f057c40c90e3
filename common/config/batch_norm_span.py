"""How many images share the statistics of batch normalisation: the field `batch_norm_span`. TensorFlow-free."""

from __future__ import annotations

from typing import Any

from common.errors import UserError


class BatchNormSpan:
    """Of a configuration that has the field `batch_norm_span`; 0 there is a replica's micro-batch."""

    batch_norm_span: int
    micro_batch_size: int
    num_groups: int

    @property
    def bn_span(self) -> int:
        """Images that share batch-norm statistics, where these are not frozen; what the log calls model_bn_span."""
        return self.batch_norm_span or self.micro_batch_size

    def single_replica_changes(self) -> dict[str, Any]:
        """As RunConfig's; statistics over more images than one replica holds would wait for others."""
        changes = super().single_replica_changes()
        return changes | {"batch_norm_span": 0} if self.batch_norm_span > self.micro_batch_size else changes

    def validate_span(self) -> None:
        """Raises UserError where the span is neither whole replicas in equal groups nor a part of one."""
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
