"""Weight-update sharding (section 2 and figure 4 of the pods paper): each replica updates 1/N of the weights.

Gradients are reduce-scattered, each replica updates its part, and the new weights are all-gathered. Slots exist for
the replica's own part only. Every weight is cut into N equal parts (the last ones padded with zeros). So all replicas
do the same work on tensors of the same shapes, and a weight's settings (decay, LARS's ratio) hold for its parts. A
bucket is [N, sum of its weights' parts], and a replica receives one vector of it. Weights that the rule treats alike
lie side by side in that vector and are updated as one tensor.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from common.config.schema import RunConfig
from common.distributed import gradient_sum
from common.distributed.replicas.base import Replicas, flatten
from common.distributed.weight_update import SlotValues, Tell, all_finite, unless_skipped
from common.optim import optimizers


@dataclasses.dataclass(frozen=True)
class Piece:
    """The `optimizers.Segments` of weight parts treated alike; a single part if the rule needs its norms or rows.

    Attributes:
      members: indices of the weights.
      adapts, regularised: as in `optimizers.Segments`.
      by_rows: whether LazyAdam updates only the rows that have a gradient.
      shape: shape of the parts together: [elements], or [rows, ...] for a part that is cut between rows.
      measured: norms of the whole weight and its whole gradient, if the rule needs them.
    """

    members: tuple[int, ...]
    adapts: bool
    regularised: bool
    by_rows: bool
    shape: tuple[int, ...]
    measured: tuple[tf.Tensor, tf.Tensor] | None = None

    def norms(self, weight: tf.Tensor, gradient: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        del weight, gradient
        return self.measured

    def touched(self, gradient: tf.Tensor) -> bool | tf.Tensor:
        return optimizers.rows_with_gradient(gradient) if self.by_rows else True


class ShardedUpdate:
    """Each replica updates its part of every weight; the interface is `weight_update.WholeUpdate`'s.

    Attributes:
      rule: the optimizer.
      slots: {name: per-replica variable} of each piece.
    """

    def __init__(
        self,
        weights: Sequence[tf.Variable],
        kinds: Mapping[Hashable, str],
        replicas: Replicas,
        config: RunConfig,
    ):
        """Creates the slots; called in the replicas' scope. Arguments as in `WholeUpdate`."""
        self._weights, self._replicas, self._config = list(weights), replicas, config
        self.rule = optimizers.rule(config.optimizer)
        self._route = gradient_sum.route_of(replicas, config.communication)
        self._by_rows = [
            config.optimizer.name == "lazy_adam" and kinds[w.ref()] == "embedding" for w in weights
        ]
        # Number of elements in a replica's part of each weight.
        self._parts = [
            self._ceil(w.shape[0] if rows else w.shape.num_elements())
            * (math.prod(w.shape[1:]) if rows else 1)
            for w, rows in zip(weights, self._by_rows)
        ]
        whole = [optimizers.Whole(kinds[w.ref()], config.optimizer.skip_kinds) for w in weights]
        self._buckets = self._plan(whole)
        self.slots = [
            {
                name: replicas.per_replica_variable(value, f"shard_{i}/{name}")
                for name, value in self.rule.init(tf.zeros(piece.shape, self._dtype(piece))).items()
            }
            for i, piece in enumerate(self._all_pieces())
        ]

    def _ceil(self, count: int) -> int:
        return -(-count // self._route.num_replicas)

    def _all_pieces(self) -> list[Piece]:
        return [piece for bucket in self._buckets for piece in bucket]

    def _dtype(self, piece: Piece) -> tf.DType:
        return self._weights[piece.members[0]].dtype

    def _plan(self, whole: Sequence[optimizers.Whole]) -> list[list[Piece]]:
        """Returns the pieces of each bucket."""
        buckets = gradient_sum.buckets(self._weights, self._config.communication.bucket_bytes)
        return [self._pieces(bucket, whole) for bucket in buckets]

    def _pieces(self, bucket: Sequence[int], whole: Sequence[optimizers.Whole]) -> list[Piece]:
        """Groups the weights of a bucket by what the rule needs to know about them."""
        optimizer = self._config.optimizer
        groups: dict[Hashable, list[int]] = {}
        for i in bucket:
            alone = self._by_rows[i] or (self.rule.adapts_by_norms and whole[i].adapts)
            decays = bool(optimizer.weight_decay) and whole[i].adapts
            key = i if alone else (decays, bool(optimizer.l2_in_loss) and whole[i].regularised)
            groups.setdefault(key, []).append(i)
        pieces = []
        for members in groups.values():
            first, size = members[0], sum(self._parts[i] for i in members)
            rows = self._by_rows[first]
            shape = (self._ceil(self._weights[first].shape[0]), *self._weights[first].shape[1:])
            pieces.append(
                Piece(
                    tuple(members),
                    whole[first].adapts,
                    whole[first].regularised,
                    rows,
                    shape if rows else (size,),
                )
            )
        return pieces

    # -- inside `run` ------------------------------------------------------------------------------------------------

    def apply(
        self, gradients: Sequence[tf.Tensor], rate: tf.Tensor, step: tf.Tensor, tell: Tell | None = None
    ) -> list[tf.Tensor]:
        """Inside `run`: updates weights and slots from this replica's gradients, not yet summed.

        `tell` as in `WholeUpdate.apply`. Each replica sees only its part of the sums, so the replicas exchange whether
        theirs are finite.

        Returns:
          All written tensors.
        """
        summed = self._scattered(gradients)
        finite = self._finite_everywhere(summed) if tell else None
        clip_norm = self._config.optimizer.clip_norm
        summed = optimizers.clipped(summed, clip_norm, self._replicas.all_reduce)
        weights = self._own_weights()
        new, after = self._updated(weights, summed, self._norms(weights, summed), rate, step, finite)
        written = []
        for slots, values in zip(self.slots, after, strict=True):
            for name, value in values.items():
                slots[name].assign(value)
                written.append(value)
        return [*written, *self._gathered(new), *(tell(finite) if tell else ())]

    def compile(self) -> None:
        """Compiles the update, between the gradients' sum and the weights' gather, into one XLA program."""
        self._updated = tf.function(self._updated, jit_compile=True, autograph=False)

    def _updated(
        self,
        weights: Sequence[tf.Tensor],
        gradients: Sequence[tf.Tensor],
        norms: Mapping[str, tuple[tf.Tensor, tf.Tensor]],
        rate: tf.Tensor,
        step: tf.Tensor,
        finite: tf.Tensor | None,
    ) -> tuple[list[tf.Tensor], list[optimizers.Slots]]:
        """Returns the new weight parts and their slots, one of each per piece."""
        new, slots = [], []
        for i, (weight, gradient) in enumerate(zip(weights, gradients, strict=True)):
            before = {name: slot.read_value() for name, slot in self.slots[i].items()}
            piece = dataclasses.replace(self._all_pieces()[i], measured=norms.get(str(i)))
            rate_here = tf.cast(rate, weight.dtype)
            updated, after = self.rule.update(weight, gradient, before, rate_here, step, piece)
            new.append(unless_skipped(finite, updated, weight))
            slots.append({name: unless_skipped(finite, after[name], before[name]) for name in before})
        return new, slots

    def _finite_everywhere(self, parts: Sequence[tf.Tensor]) -> tf.Tensor:
        return self._replicas.all_reduce(tf.cast(~all_finite(parts), tf.float32)) == 0

    def _scattered(self, gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns this replica's part of the summed gradients, one tensor per piece."""
        return [x for bucket in self._buckets for x in self._scatter(bucket, gradients)]

    def _scatter(self, bucket: Sequence[Piece], gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns this replica's part of a bucket's summed gradients, one tensor per piece."""
        members = [i for piece in bucket for i in piece.members]
        count = self._route.num_replicas
        rows = [tf.reshape(flatten([gradients[i]], self._parts[i] * count), [count, -1]) for i in members]
        whole = tf.concat(rows, 1) if len(rows) > 1 else rows[0]
        wire = self._config.communication.wire
        own_part = gradient_sum.scatter(self._replicas, tf.reshape(whole, [-1]), self._route, wire)
        return _split(own_part, [piece.shape for piece in bucket])

    def _own_weights(self) -> list[tf.Tensor]:
        """Returns this replica's part of the weights, one tensor per piece."""
        part = self._route.part(self._replicas.replica_id())
        return [self._own_part(piece, part) for piece in self._all_pieces()]

    def _own_part(self, piece: Piece, part: tf.Tensor | int) -> tf.Tensor:
        """Returns this replica's part of a piece's weights."""
        parts = []
        for i in piece.members:
            flat, length = tf.reshape(self._weights[i].read_value(), [-1]), self._parts[i]
            excess = length * self._route.num_replicas - flat.shape[0]
            if not excess:
                parts.append(self._replicas.cut(flat, [part * length], [length]))
                continue
            # The last parts extend past the end: read the last `length` elements and shift them.
            start = tf.minimum(part * length, flat.shape[0] - length)
            shift = tf.minimum(part * length - start, length)
            last = self._replicas.cut(flat, [start], [length])
            padded = tf.concat([last, tf.zeros([length], flat.dtype)], 0)
            parts.append(self._replicas.cut(padded, [shift], [length]))
        return tf.reshape(tf.concat(parts, 0) if len(parts) > 1 else parts[0], piece.shape)

    def _norms(
        self, weights: Sequence[tf.Tensor], gradients: Sequence[tf.Tensor]
    ) -> dict[str, tuple[tf.Tensor, tf.Tensor]]:
        """Returns the norms that LARS needs, by piece number; one small all-reduce serves all layers."""
        pieces = self._all_pieces()
        layers = [i for i, piece in enumerate(pieces) if self.rule.adapts_by_norms and piece.adapts]
        if not layers:
            return {}
        squares = []
        for i in layers:
            raw = optimizers.raw_gradient(self._config.optimizer, weights[i], gradients[i], pieces[i])
            squares += [tf.reduce_sum(weights[i] * weights[i]), tf.reduce_sum(raw * raw)]
        norms = tf.unstack(tf.sqrt(self._replicas.all_reduce(tf.stack(squares))))
        return {str(i): (norms[2 * place], norms[2 * place + 1]) for place, i in enumerate(layers)}

    def _gathered(self, new: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """All-gathers the new weights from all pieces' parts and writes them."""
        written, parts = [], iter(new)
        for bucket in self._buckets:
            written += self._gather(bucket, [next(parts) for _ in bucket])
        return written

    def _gather(self, bucket: Sequence[Piece], new: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """All-gathers a bucket's new weights, always in full precision, and writes them."""
        members = [i for piece in bucket for i in piece.members]
        whole = gradient_sum.gather(self._replicas, flatten(new), self._route)
        rows = tf.reshape(whole, [self._route.num_replicas, -1])
        parts = tf.split(rows, [self._parts[i] for i in members], 1) if len(members) > 1 else [rows]
        values = [
            tf.reshape(tf.reshape(p, [-1])[: self._weights[i].shape.num_elements()], self._weights[i].shape)
            for i, p in zip(members, parts, strict=True)
        ]
        self._replicas.assign([self._weights[i] for i in members], values)
        return values

    # -- outside `run` -----------------------------------------------------------------------------------------------

    def read_slots(self) -> SlotValues:
        """Outside `run`, called by every process: returns the slots of every weight, in the weight's shape."""
        count = self._route.num_replicas
        values: SlotValues = [{} for _ in self._weights]
        order = np.argsort([self._route.part(r) for r in range(count)])
        for piece, slots in zip(self._all_pieces(), self.slots, strict=True):
            for name, slot in slots.items():
                rows = self._replicas.all_values(slot)[order].reshape(count, -1)
                places = np.cumsum([self._parts[i] for i in piece.members])[:-1]
                for i, part in zip(piece.members, np.split(rows, places, 1), strict=True):
                    shape = self._weights[i].shape
                    values[i][name] = part.reshape(-1)[: shape.num_elements()].reshape(shape)
        return values

    def write_slots(self, values: SlotValues) -> None:
        """Outside `run`: writes the values of `read_slots` (from any number of replicas) to the local replicas."""
        count = self._route.num_replicas
        first = self._replicas.process_index * (count // self._replicas.num_processes)
        for piece, slots in zip(self._all_pieces(), self.slots, strict=True):
            for name, slot in slots.items():
                rows = []
                for i in piece.members:
                    flat = values[i][name].reshape(-1)
                    flat = np.pad(flat, (0, self._parts[i] * count - flat.size))
                    rows.append(flat.reshape(count, -1))
                rows = np.concatenate(rows, 1)
                for j, copy in enumerate(self._replicas.local_results(slot)):
                    copy.assign(rows[self._route.part(first + j)].reshape(piece.shape))


def _split(flat: tf.Tensor, shapes: Sequence[tuple[int, ...]]) -> list[tf.Tensor]:
    parts = tf.split(flat, [math.prod(s) for s in shapes]) if len(shapes) > 1 else [flat]
    return [tf.reshape(part, shape) for part, shape in zip(parts, shapes, strict=True)]
