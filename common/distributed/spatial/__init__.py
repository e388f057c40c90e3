"""Spatial partitioning: the replicas of a group share each image by rows (figure 3 of the pods paper)."""

from common.distributed.spatial.partition import WHOLE_IMAGES, Spatial
from common.distributed.spatial.sharing import shared_input

__all__ = ["WHOLE_IMAGES", "Spatial", "shared_input"]
