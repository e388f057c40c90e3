"""Computes on images whose rows lie on several replicas: halo exchange, convolution, pooling, moments, gradients.

Everything uses three differentiable collectives of `common.distributed.replicas` (shift, all_gather, all_reduce), so
it runs on every backend. Some rows do not exist: 300 rows on 8 replicas are 8 x 38. Such rows may hold any finite
number, because operations that mix rows mask their *input*, which also stops those rows' gradients. So layers that
work pixel by pixel, 1x1 convolutions included, need no change.
"""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from common.distributed.replicas.base import Replicas, building, contiguous_groups
from common.distributed.replicas.single import Single
from common.distributed.spatial.geometry import Padding, Window, output_size, resolve, rows_of
from common.errors import UserError


class Spatial:
    """Partitions a network's images by rows; layers call it for operations that need other replicas' rows.

    Use one object per network: it remembers how many rows the whole image has at each stage. A group is `partitions`
    consecutive replicas. With one partition, and on one device, every method is the ordinary operation.

    A loss after `leave_own` covers a replica's own images. A loss after `leave` or `global_average` is computed by
    each of the k replicas of a group, so its weight is also counted k times, and the loss of a step stays the same: a
    term over GLOBAL is k totals divided by k times the weight; a term over REPLICA is k terms, each divided by the
    number of replicas (`common.train.task.Reduction`). The gradients need no correction either, because they are summed
    over the replicas.

    Attributes:
      partitions: replicas that share an image.
      groups: lists of replica numbers.
    """

    def __init__(self, replicas: Replicas, partitions: int = 1):
        """Raises UserError if `partitions` does not divide the number of replicas."""
        # A single device holds whole images, even when common/train/describe.py only counts a network's operations.
        self.partitions = 1 if isinstance(replicas, Single) else partitions
        self.groups = contiguous_groups(replicas.num_replicas, self.partitions)
        self._replicas = replicas
        self._heights: dict[tuple[int, int], int] = {}

    # -- into and out of the partitioned part ----------------------------------------------------------------

    def enter(self, images: tf.Tensor) -> tf.Tensor:
        """Returns this replica's rows, [b, ceil(H/k), W, C], of `images` [b, H, W, C], which its whole group holds."""
        if self.partitions == 1:
            return images
        _, height, width, _ = images.shape
        rows = self._remember(height, width)
        missing = self.partitions * rows - height
        padded = tf.pad(images, [[0, 0], [0, missing], [0, 0], [0, 0]]) if missing else images
        return self._rows(padded, self.position() * rows, rows)

    def leave(self, x: tf.Tensor) -> tf.Tensor:
        """Returns the whole feature maps [b, H, W, C] on every replica of the group."""
        if self.partitions == 1:
            return x
        if building():
            return tf.concat([x] * self.partitions, 1)[:, : self.height(x)]
        return self._replicas.all_gather(x, axis=1, groups=self.groups)[:, : self.height(x)]

    def leave_own(self, x: tf.Tensor) -> tf.Tensor:
        """Returns the whole feature maps of this replica's own images, [ceil(b/k), H, W, C]; see `local_images`.

        A replica sends each other replica the rows of that replica's images: 1/k of what `leave` moves.
        """
        if self.partitions == 1:
            return x
        count, height = self.partitions, self.height(x)
        if building():
            return tf.concat([x] * count, 1)[: self._local_count(x.shape[0]), :height]
        rows = self._replicas.all_to_all(self._filled(x), axis=0, groups=self.groups)
        _, each, width, channels = rows.shape
        rows = tf.transpose(tf.reshape(rows, [count, -1, each, width, channels]), [1, 0, 2, 3, 4])
        return tf.reshape(rows, [-1, count * each, width, channels])[:, :height]

    def local_images(self, x: tf.Tensor) -> tf.Tensor:
        """Returns this replica's share, [ceil(b/k), ...], of `x` [b, ...]; its whole group holds `x`.

        The code after the partitioned part then computes each image once per group. Zeros pad the last share.
        """
        if self.partitions == 1:
            return x
        count = self._local_count(x.shape[0])
        begin = [self.position() * count, *[0] * (x.shape.rank - 1)]
        return self._replicas.cut(self._filled(x), begin, [count, *x.shape[1:]])

    def all_images(self, x: tf.Tensor, count: int) -> tf.Tensor:
        """Returns the results for all `count` images of the group, [count, ...], from each replica's own results."""
        return x if self.partitions == 1 else self._replicas.all_gather(x, groups=self.groups)[:count]

    def _local_count(self, count: int) -> int:
        return -(-count // self.partitions)

    def _filled(self, x: tf.Tensor) -> tf.Tensor:
        """Returns `x` padded with zero images, so that all replicas' shares have the same size."""
        missing = self.partitions * self._local_count(x.shape[0]) - x.shape[0]
        return tf.pad(x, [[0, missing], *[[0, 0]] * (x.shape.rank - 1)]) if missing else x

    def global_average(self, x: tf.Tensor) -> tf.Tensor:
        """Returns the mean over all rows and columns, [b, C], on every replica of the group."""
        if self.partitions == 1:
            return tf.reduce_mean(x, axis=[1, 2])
        height = self.height(x)
        sums = tf.reduce_sum(self._real(x), axis=[1, 2])
        return self.all_reduce(sums) / (height * x.shape[2])

    def height(self, x: tf.Tensor) -> int:
        """Returns the height of the whole image; `x`, [b, R, W, C], is a part of it.

        Raises UserError if `x` does not come from this object's operations.
        """
        return self.height_of(x.shape[1], x.shape[2])

    def height_of(self, rows: int, width: int) -> int:
        """As `height`, from the part's shape."""
        if self.partitions == 1:
            return rows
        if (rows, width) not in self._heights:
            raise UserError(
                f"spatial partitioning: {rows} rows of {width} columns come from no partitioned layer; "
                "start with `enter`, and change rows and columns by this object's operations only"
            )
        return self._heights[rows, width]

    # -- operations ------------------------------------------------------------------------------------------

    def conv2d(self, x: tf.Tensor, kernel: tf.Tensor, stride: int, padding: Padding) -> tf.Tensor:
        """Returns this replica's rows of the whole image's tf.nn.conv2d; `kernel` is square, [n, n, C, F]."""
        if self.partitions == 1 and isinstance(padding, str):
            return tf.nn.conv2d(x, kernel, stride, padding.upper())
        return tf.nn.conv2d(self.window(x, kernel.shape[0], stride, padding), kernel, stride, "VALID")

    def max_pool(self, x: tf.Tensor, size: int, stride: int, padding: Padding) -> tf.Tensor:
        """Takes the maximum of each window over its elements inside the image."""
        if self.partitions == 1 and isinstance(padding, str):
            return tf.nn.max_pool2d(x, size, stride, padding.upper())
        y = tf.nn.max_pool2d(self.window(x, size, stride, padding, x.dtype.min), size, stride, "VALID")
        # Windows outside the image hold the dtype's smallest number, which must not enter other operations.
        return self._real(y)

    def upsample(self, x: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
        """Repeats every cell of `x` in both directions, cuts it to the size of `like`; returns this replica's rows.

        An earlier replica may hold the coarse rows that these need. For example, on four replicas 26 rows are 4 x 7,
        and 52 rows are 4 x 13. The second replica's fine rows 13 to 25 start from coarse row 6, which the first
        replica holds.

        Args:
          x: [b, R, W, C], this replica's rows of a map of half the size of `like`, rounded up.
          like: [b, R', W', c]; only its shape is read.
        """
        columns, rows, coarse = like.shape[2], like.shape[1], x.shape[1]
        if self.partitions == 1:
            twice = _twice(x)
            return twice if twice.shape[1:3] == like.shape[1:3] else twice[:, :rows, :columns]
        x = tf.repeat(x, 2, axis=2)[:, :, :columns]
        # Position p needs the rows from p * rows // 2 on and holds those from p * coarse on, which start no earlier.
        above = max(p * coarse - p * rows // 2 for p in range(self.partitions))
        extended = tf.concat([*self._above(x, above), x], axis=1)
        position = self.position()
        needed = (position * rows + np.arange(rows)) // 2 - position * coarse + above
        # The indices of rows that do not exist may lie past the end.
        limit = extended.shape[1] - 1
        clip = np.clip if isinstance(position, int) else tf.clip_by_value
        needed = clip(needed, 0, limit)
        return tf.ensure_shape(tf.gather(extended, needed, axis=1), [x.shape[0], rows, *x.shape[2:]])

    def window(self, x: tf.Tensor, size: int, stride: int, padding: Padding, fill: float = 0.0) -> tf.Tensor:
        """Returns the rows and columns from which a "VALID" operation computes this replica's output rows.

        Args:
          x: [b, R, W, C], this replica's rows.
          size, stride: size and stride of the operation's square window.
          padding: padding of the whole image.
          fill: value of elements outside the image.

        Returns:
          [b, n, m, C], with the needed rows of other replicas and the padding.
        """
        height, width = self.height(x), x.shape[2]
        (top, bottom), (left, right) = resolve(padding, height, width, size, stride)
        if self.partitions == 1:
            return _pad(x, (top, bottom), (left, right), fill)
        window = Window.for_image(height, self.partitions, size, stride, top, bottom)
        self._remember(window.height, output_size(width, size, stride, left, right))
        extended = tf.concat([*self._above(x, window.above), x, *self._below(x, window.below)], axis=1)
        position = self.position()
        needed = self._rows(extended, self._start(window, extended.shape[1], position), window.length)
        if fill or height < self.partitions * x.shape[1]:
            needed = _masked(needed, position * window.advance - top, height, fill)
        return _pad(needed, (0, 0), (left, right), fill)

    def output_rows(self, rows: int, width: int, size: int, stride: int, padding: Padding) -> int:
        """Number of output rows on a replica whose part of the image is `rows` x `width`."""
        height = self.height_of(rows, width)
        (top, bottom), _ = resolve(padding, height, width, size, stride)
        return rows_of(output_size(height, size, stride, top, bottom), self.partitions)

    def means(self, x: tf.Tensor, virtual: int) -> tuple[tf.Tensor, float | tf.Tensor]:
        """Means over this replica's part of each of `virtual` groups of images, for batch norm.

        Returns (means [2, G, C] of `x` and of its squares, this replica's fraction of the image's rows). If this
        replica has no rows of the image, the means are 0.
        """
        height, rows, channels = self.height(x), x.shape[1], x.shape[-1]
        real_rows = _clip(height - self.position() * rows, 0, rows)
        share = tf.cast(real_rows, x.dtype) / height
        count = tf.cast(tf.maximum(real_rows, 1) * (tf.size(x) // (virtual * rows * channels)), x.dtype)
        grouped = tf.reshape(self._real(x), [virtual, -1, *x.shape[1:]])
        sums = [tf.reduce_sum(one, axis=[1, 2, 3]) for one in (grouped, grouped * grouped)]
        return tf.stack(sums) / count, share

    # -- parts -----------------------------------------------------------------------------------------------

    def _remember(self, height: int, width: int) -> int:
        """Remembers the height of an image of that size for parts of that shape; returns a replica's number of rows."""
        rows = rows_of(height, self.partitions)
        earlier = self._heights.setdefault((rows, width), height)
        if earlier != height:
            raise UserError(
                f"spatial partitioning: parts of {rows} rows and {width} columns would be of images of {earlier} "
                f"and of {height} rows; use other partitions than {self.partitions}, or one Spatial for each"
            )
        return rows

    def position(self) -> int | tf.Tensor:
        """This replica's position in its group; an int if the backend knows it while tracing."""
        if building():
            return 0
        replica = self._replicas.replica_id()
        constant = tf.get_static_value(replica)
        return (replica if constant is None else int(constant)) % self.partitions

    def _rows(self, x: tf.Tensor, start: int | tf.Tensor, count: int) -> tf.Tensor:
        """Returns x[:, start : start + count] with a static shape."""
        if count == x.shape[1]:
            return x
        if isinstance(start, int):
            # Run eagerly, this slice's gradient takes another replica's shape unless an operation follows it.
            return tf.ensure_shape(x[:, start : start + count], [x.shape[0], count, *x.shape[2:]])
        # The batch size may be unknown while a network is built.
        if x.shape[0] is None:
            return tf.ensure_shape(x[:, start : start + count], [None, count, *x.shape[2:]])
        return self._replicas.cut(x, [0, start, 0, 0], [x.shape[0], count, *x.shape[2:]])

    def _start(self, window: Window, rows: int, position: int | tf.Tensor) -> int | tf.Tensor:
        """Index of the first needed row among the held and fetched rows."""
        start = window.above - window.top + (position * window.drift if window.drift else 0)
        # Positions without output rows may index past the end; nothing uses their result.
        return _clip(start, 0, rows - window.length)

    def _above(self, x: tf.Tensor, count: int) -> list[tf.Tensor]:
        """The `count` rows before this replica's, nearest last; zeros before the image."""
        rows = x.shape[1]
        hops = range(-(-count // rows), 0, -1)
        return [self._from(x[:, max(rows * hop - count, 0) :], hop) for hop in hops]

    def _below(self, x: tf.Tensor, count: int) -> list[tf.Tensor]:
        """The `count` rows after this replica's, nearest first."""
        rows = x.shape[1]
        hops = range(1, -(-count // rows) + 1)
        return [self._from(x[:, : min(count - rows * (hop - 1), rows)], -hop) for hop in hops]

    def _from(self, x: tf.Tensor, distance: int) -> tf.Tensor:
        """The `x` of the replica `distance` places earlier; zeros if there is none."""
        if building() or abs(distance) >= self.partitions:
            return tf.zeros_like(x)
        return self._replicas.shift(x, distance, self.groups)

    def _real(self, x: tf.Tensor) -> tf.Tensor:
        """`x` with zeros in the rows that do not exist."""
        height = self.height(x)
        if height == self.partitions * x.shape[1]:
            return x
        return _masked(x, self.position() * x.shape[1], height, 0.0)

    def all_reduce(self, x: tf.Tensor) -> tf.Tensor:
        """Returns the sum of `x` over the group; `x` itself while a network is being built."""
        return x if building() else self._replicas.all_reduce(x, self.groups)


WHOLE_IMAGES = Spatial(Single())


@tf.custom_gradient
def _twice(x: tf.Tensor) -> tuple[tf.Tensor, Callable]:
    """Repeats each cell: [b, H, W, C] -> [b, 2H, 2W, C].

    The gradient is a pooling; on a CPU it takes a sixth of the time of `tf.repeat`'s gradient.
    """
    _, height, width, channels = x.shape
    tiled = tf.tile(x[:, :, None, :, None], [1, 1, 2, 1, 2, 1])

    def gradient(above: tf.Tensor) -> tf.Tensor:
        return 4 * tf.nn.avg_pool2d(above, 2, 2, "VALID")

    return tf.reshape(tiled, [-1, 2 * height, 2 * width, channels]), gradient


def _masked(x: tf.Tensor, first: int | tf.Tensor, height: int, fill: float) -> tf.Tensor:
    """Fills the rows of `x` outside [0, height); `x` holds rows first, first + 1, ... of an image."""
    rows = first + np.arange(x.shape[1])
    inside = (rows >= 0) & (rows < height)
    if isinstance(inside, np.ndarray) and inside.all():
        return x
    return tf.where(tf.reshape(inside, [1, -1, 1, 1]), x, tf.cast(fill, x.dtype))


def _pad(x: tf.Tensor, rows: tuple[int, int], columns: tuple[int, int], fill: float) -> tf.Tensor:
    if not any(rows + columns):
        return x
    return tf.pad(x, [(0, 0), rows, columns, (0, 0)], constant_values=tf.cast(fill, x.dtype))


def _clip(x: int | tf.Tensor, low: int, high: int) -> int | tf.Tensor:
    return min(max(x, low), high) if isinstance(x, int) else tf.clip_by_value(x, low, high)
