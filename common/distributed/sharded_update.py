"""Weight-update sharding (section 2 and figure 4 of the pods paper): each replica updates 1/N of the weights.

Gradients are reduce-scattered, each replica updates its part, and the new weights are all-gathered. Slots exist for
the replica's own part only. Every weight is cut into N equal parts (the last ones padded with zeros). So all replicas
do the same work on tensors of the same shapes, and a weight's settings (decay, LARS's ratio) hold for its parts. A
bucket is [N, sum of its weights' parts], and a replica receives one vector of it. Weights that the rule treats alike
lie side by side in that vector and are updated as one tensor.
"""

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf

from common.distributed import gradient_sum
from common.distributed.replicas.base import flatten
from common.distributed.shard_layout import WeightShard
from common.distributed.weight_update import WeightUpdate, rate_of
from common.optim import optimizers
from common.optim.optimizers import WeightState


class ShardedUpdate(WeightUpdate):
    """Each replica updates its part of every weight; `slots` has an element for each shard."""

    def _make_slots(self) -> list[dict[str, tf.Variable]]:
        self._route = gradient_sum.route(self._config.communication, self._replicas.num_replicas)
        skips_rows = self._config.optimizer.skips_rows
        self._by_rows = [skips_rows and s.kind == "embedding" for s in self._segments]
        # Number of elements in a replica's part of each weight.
        self._sizes = [
            self._ceil(w.shape[0] if rows else w.shape.num_elements())
            * (math.prod(w.shape[1:]) if rows else 1)
            for w, rows in zip(self._weights, self._by_rows)
        ]
        self._buckets = self._plan()
        make = self._replicas.per_replica_variable
        return [
            self._slots_of(shard.shape, self._weights[shard.members[0]].dtype, f"shard_{i}", make)
            for i, shard in enumerate(self._all_shards())
        ]

    def _ceil(self, count: int) -> int:
        return -(-count // self._route.num_replicas)

    def _part(self, replica: tf.Tensor | int) -> tf.Tensor | int:
        """The number of a replica's part."""
        return self._route.part(replica)

    def _all_shards(self) -> list[WeightShard]:
        return [shard for bucket in self._buckets for shard in bucket]

    def _plan(self) -> list[list[WeightShard]]:
        """Returns the shards of each bucket."""
        buckets = gradient_sum.buckets(self._weights, gradient_sum.BUCKET_BYTES)
        return [self._shards(bucket) for bucket in buckets]

    def _shards(self, bucket: Sequence[int]) -> list[WeightShard]:
        """Groups the weights of a bucket by what the rule needs to know about them."""
        optimizer, whole = self._config.optimizer, self._segments
        groups: dict[Hashable, list[int]] = {}
        for i in bucket:
            alone = self._by_rows[i] or (self.rule.adapts_by_norms and whole[i].adapts)
            decays = bool(optimizer.weight_decay) and whole[i].adapts
            own_rate = optimizer.one_warmup_delta and whole[i].kind == "bias"
            regularized = bool(optimizer.l2_in_loss) and whole[i].regularized
            key = i if alone else (decays, regularized, own_rate)
            groups.setdefault(key, []).append(i)
        shards = []
        for members in groups.values():
            first, size = members[0], sum(self._sizes[i] for i in members)
            rows = self._by_rows[first]
            shape = (self._ceil(self._weights[first].shape[0]), *self._weights[first].shape[1:])
            shards.append(
                WeightShard(
                    tuple(members),
                    whole[first].adapts,
                    whole[first].regularized,
                    rows,
                    shape if rows else (size,),
                    tuple(self._sizes[i] for i in members),
                    tuple(tuple(self._weights[i].shape) for i in members),
                    self._route.num_replicas,
                )
            )
        return shards

    # -- inside `run` ------------------------------------------------------------------------------------------------

    def apply(self, gradients: Sequence[tf.Tensor], rate: tf.Tensor, step: tf.Tensor) -> list[tf.Tensor]:
        summed = self._scattered(gradients)
        rule = self._config.optimizer
        summed = optimizers.clipped(summed, rule.clip_norm, self._replicas.all_reduce, rule.clip_epsilon)
        weights = self._local_weights()
        norms = self._norms(weights, summed, rate, step)
        new, after = self._updated(weights, summed, norms, rate, step)
        updated = []
        for slots, values in zip(self.slots, after, strict=True):
            for name, value in values.items():
                slots[name].assign(value)
                updated.append(value)
        return [*updated, *self._gathered(new)]

    def _updated(
        self,
        weights: Sequence[tf.Tensor],
        gradients: Sequence[tf.Tensor],
        norms: Mapping[str, tuple[tf.Tensor, tf.Tensor]],
        rate: tf.Tensor,
        step: tf.Tensor,
    ) -> tuple[list[tf.Tensor], list[optimizers.Slots]]:
        """Returns the new weight parts and their slots, one of each per shard."""
        new, slots = [], []
        for i, (weight, gradient) in enumerate(zip(weights, gradients, strict=True)):
            before, shard = self._slots_before(i), self._all_shards()[i]
            own_rate = rate_of(self._config, self._segments[shard.members[0]].kind == "bias", rate, step)
            rate_here, segments = tf.cast(own_rate, weight.dtype), shard.segments(norms.get(str(i)))
            state = WeightState(weight, gradient, before, rate_here, step, segments)
            updated, after = self.rule.update(state)
            new.append(updated)
            slots.append(after)
        return new, slots

    def _slots_before(self, i: int) -> optimizers.Slots:
        return {name: slot.read_value() for name, slot in self.slots[i].items()}

    def _scattered(self, gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns this replica's part of the summed gradients, one tensor for each shard."""
        return [x for bucket in self._buckets for x in self._scatter(bucket, gradients)]

    def _scatter(self, bucket: Sequence[WeightShard], gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns this replica's part of a bucket's summed gradients, one tensor per shard."""
        rows = [row for shard in bucket for row in shard.rows(gradients)]
        whole = tf.concat(rows, 1) if len(rows) > 1 else rows[0]
        wire = self._config.communication.wire
        own_part = gradient_sum.scatter(self._replicas, tf.reshape(whole, [-1]), self._route, wire)
        sizes = [math.prod(shard.shape) for shard in bucket]
        parts = tf.split(own_part, sizes) if len(sizes) > 1 else [own_part]
        return [tf.reshape(part, shard.shape) for part, shard in zip(parts, bucket, strict=True)]

    def _local_weights(self) -> list[tf.Tensor]:
        part = self._part(self._replicas.replica_id())
        return [shard.part_of(self._weights, part, self._replicas) for shard in self._all_shards()]

    def _norms(
        self, weights: Sequence[tf.Tensor], gradients: Sequence[tf.Tensor], rate: tf.Tensor, step: tf.Tensor
    ) -> dict[str, tuple[tf.Tensor, tf.Tensor]]:
        """Returns the norms that LARS or LAMB needs, by shard number; one small all-reduce serves all layers."""
        shards = self._all_shards()
        layers = [i for i, shard in enumerate(shards) if self.rule.adapts_by_norms and shard.adapts]
        if not layers:
            return {}
        squares = []
        for i in layers:
            state = WeightState(weights[i], gradients[i], self._slots_before(i), rate, step, shards[i])
            if self.rule.measured:
                other = self.rule.measured(state)
            else:
                other = optimizers.raw_gradient(self._config.optimizer, state)
            squares += [tf.reduce_sum(weights[i] * weights[i]), tf.reduce_sum(other * other)]
        norms = tf.unstack(tf.sqrt(self._replicas.all_reduce(tf.stack(squares))))
        return {str(i): (norms[2 * place], norms[2 * place + 1]) for place, i in enumerate(layers)}

    def _gathered(self, new: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """All-gathers the new weights from all shards' parts and writes them."""
        values, parts = [], iter(new)
        for bucket in self._buckets:
            values += self._gather(bucket, [next(parts) for _ in bucket])
        return values

    def _gather(self, bucket: Sequence[WeightShard], new: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """All-gathers a bucket's new weights, always in full precision, and writes them."""
        members = [i for shard in bucket for i in shard.members]
        whole = gradient_sum.gather(self._replicas, flatten(new), self._route)
        rows = tf.reshape(whole, [self._route.num_replicas, -1])
        widths = [width for shard in bucket for width in shard.widths]
        columns = iter(tf.split(rows, widths, 1) if len(widths) > 1 else [rows])
        values = [value for shard in bucket for value in shard.weights([next(columns) for _ in shard.widths])]
        self._replicas.assign([self._weights[i] for i in members], values)
        return values

    # -- outside `run` -----------------------------------------------------------------------------------------------

    @property
    def slot_shapes(self) -> list[dict[str, tuple[int, ...]]]:
        shapes: list[dict[str, tuple[int, ...]]] = [{} for _ in self._weights]
        for shard, slots in zip(self._all_shards(), self.slots, strict=True):
            for name, slot in slots.items():
                for i, shape in zip(shard.members, shard.slot_shapes(tuple(slot.shape)), strict=True):
                    shapes[i][name] = shape
        return shapes

    def each_slot(self) -> Iterator[tuple[int, str, np.ndarray]]:
        order = np.argsort([self._part(r) for r in range(self._route.num_replicas)])
        for shard, slots in zip(self._all_shards(), self.slots, strict=True):
            for name, slot in slots.items():
                parts = shard.slot_values(self._replicas.all_values(slot)[order])
                yield from ((i, name, value) for i, value in zip(shard.members, parts, strict=True))

    def write_slots(self, saved: Callable[[int, str], np.ndarray]) -> None:
        first = self._replicas.process_index * (self._route.num_replicas // self._replicas.num_processes)
        for shard, slots in zip(self._all_shards(), self.slots, strict=True):
            for name, slot in slots.items():
                parts = shard.slot_parts([saved(i, name) for i in shard.members], tuple(slot.shape))
                for j, copy in enumerate(self._replicas.local_results(slot)):
                    copy.assign(parts[self._part(first + j)])
