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

    def validate_span(self, tile_rows: int = 1, grid_columns: int = 0) -> None:
        """Raises UserError if the span fits neither a replica's batch nor several replicas, see `span_groups`."""
        span_groups(self.bn_span, self.micro_batch_size, self.num_groups, tile_rows, grid_columns)


def span_groups(
    span: int, batch: int, replicas: int, tile_rows: int = 1, grid_columns: int = 0
) -> tuple[int, int]:
    """Returns (groups in a replica's batch, replicas that share a group): one of the two is 1.

    Args:
      span: number of images that share batch-norm statistics, positive.
      batch: images of a replica.
      replicas: their number; replicas that share images count once.
      tile_rows, grid_columns: which replicas are joined, see `check_tiles`.

    Raises:
      UserError: the span neither divides `batch` nor is `batch` times a divisor of `replicas`, or the tiles do not fit.
    """
    if 0 < span <= batch and batch % span == 0:
        return batch // span, 1
    if span > batch and span % batch == 0 and replicas % (span // batch) == 0:
        try:
            check_tiles(replicas, span // batch, tile_rows, grid_columns)
        except UserError as error:
            fields = f"config.batch_norm_tile_rows={tile_rows}, config.batch_norm_grid_columns={grid_columns}"
            raise UserError(f"{fields}: {error}") from error
        return 1, span // batch
    raise UserError(
        f"config.batch_norm_span={span} does not group {replicas} replicas of {batch} images; "
        f"use a divisor of {batch}, or {batch} times a divisor of {replicas}"
    )


def check_tiles(num_replicas: int, size: int, tile_rows: int = 1, grid_columns: int = 0) -> None:
    """Checks the arguments of `common.distributed.replicas.base.replica_groups`.

    Raises UserError if the sizes do not divide evenly.
    """
    if not grid_columns:
        if tile_rows != 1:
            said = f"tiles of {tile_rows} rows need the columns of the replicas' grid"
            raise UserError(f"{said}; set grid_columns")
        if size < 1 or num_replicas % size:
            raise UserError(f"groups of {size} replicas do not divide {num_replicas} replicas; use a divisor")
        return
    if grid_columns < 1 or num_replicas % grid_columns:
        raise UserError(f"grid_columns={grid_columns} does not divide {num_replicas} replicas; use a divisor")
    grid_rows, columns = num_replicas // grid_columns, size // max(tile_rows, 1)
    if size < 1 or tile_rows < 1 or size % tile_rows or grid_rows % tile_rows or grid_columns % columns:
        raise UserError(
            f"groups of {size} replicas in {tile_rows} rows do not tile {grid_rows} x {grid_columns} replicas; use a "
            f"divisor of {size} and {grid_rows} rows, and a divisor of {grid_columns} columns"
        )
