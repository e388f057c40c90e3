"""tf_keras layers of a network whose images may be partitioned; with one partition, the stock operations."""

import tensorflow as tf
import tf_keras

from common.distributed.spatial.geometry import Padding
from common.distributed.spatial.partition import Spatial


class Enter(tf_keras.layers.Layer):
    """Cuts images [b, H, W, C], equal on the group's replicas, to this replica's rows."""

    def __init__(self, spatial: Spatial, **kwargs):
        super().__init__(**kwargs)
        self.spatial = spatial

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return self.spatial.enter(x)


class Leave(Enter):
    """Gathers the replicas' rows into whole feature maps [b, H, W, C], on every replica of the group."""

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return self.spatial.leave(x)


class LeaveOwn(Enter):
    """Gathers the rows of this replica's own images into whole feature maps [ceil(b/k), H, W, C]."""

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return self.spatial.leave_own(x)


class GlobalAverage(Enter):
    """Takes the mean over the whole image, [b, C], on every replica of the group."""

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return self.spatial.global_average(x)


class MaxPool(Enter):
    """Maximum over windows of `size`; `padding` as in `geometry.Padding`."""

    def __init__(self, spatial: Spatial, size: int, stride: int, padding: Padding, **kwargs):
        super().__init__(spatial, **kwargs)
        self.window = size, stride, padding

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return self.spatial.max_pool(x, *self.window)


class Upsample(Enter):
    """Scales a coarse map to a fine map's size by nearest neighbors; the input is [coarse, fine]."""

    def call(self, maps: list[tf.Tensor]) -> tf.Tensor:
        return self.spatial.upsample(*maps)
