"""Checks a SavedModel's graph before TensorFlow loads it: its operations, object sizes and files.

A graph can write files, call Python or use the network, and parts of it run on loading. So every operation that is
reachable from a function of the SavedModel must be in ALLOWED: arithmetic on tensors, pictures and texts, control flow,
variables and tables in memory. Operations that TensorFlow adds for saving again are not reachable and do not run.
"""

from __future__ import annotations

import graphlib
import math
import os
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf

from common.distributed.tensorflow_private import saved_model_pb2
from common.errors import UserError
from common.layers import weight_files
from common.layers.weight_files import MOST_GRAPH
from common.untrusted import read_plain

# Maximum bytes of a graph's constants. The limit is needed because one number and a shape can define a huge constant.
_MOST_CONSTANTS = 1 << 28
# Files that TensorFlow would load in place of saved_model.pb.
_OTHERS = ("saved_model.cpb", "saved_model.pbtxt")
# Kinds of objects that `timetotrain export` writes. Others are not allowed: TensorFlow would rebuild Keras objects, for
# example, from a description of layers.
_KINDS = (
    "user_object", "function", "bare_concrete_function", "variable", "constant", "resource", "captured_tensor",
)  # fmt: skip
_TYPES = ("_generic_user_object", "signature_map", "trackable_list_wrapper", "trackable_dict_wrapper")
_REGISTERED = ("", "tf.StaticHashTable", "tf.TrackableConstant")
# Arithmetic, arrays, networks and matrices, pictures and texts, control flow, lists, variables and tables in memory.
_NAMES = """
Abs Acos Acosh Add AddN AddV2 All Any ArgMax ArgMin Asin Asinh Atan Atan2 Atanh BatchMatMul BatchMatMulV2
BatchMatMulV3 Cast Ceil ClipByValue Cos Cosh Cumprod Cumsum DenseBincount Div DivNoNan Equal Erf Erfc Exp Expm1
Floor FloorDiv FloorMod Greater GreaterEqual Inv IsFinite IsInf IsNan Less LessEqual LinSpace Log Log1p LogicalAnd
LogicalNot LogicalOr MatMul Max Maximum Mean Min Minimum Mod Mul MulNoNan Neg NotEqual Pow Prod Range RealDiv
Reciprocal Rint Round Rsqrt SegmentMax SegmentMean SegmentSum Select SelectV2 Sigmoid SigmoidGrad Sign Sin Sinh Sqrt
Square SquaredDifference Sub Sum Tan Tanh TanhGrad TruncateDiv TruncateMod UnsortedSegmentMax UnsortedSegmentSum
Xdivy Xlogy
BatchToSpaceND Bitcast BroadcastArgs BroadcastTo ConcatV2 Const DepthToSpace EnsureShape ExpandDims Fill Gather
GatherNd GatherV2 Identity IdentityN InvertPermutation LowerBound MatrixBandPart MirrorPad OneHot OnesLike Pack Pad
PadV2 Rank Reshape ReverseSequence ReverseV2 ScatterNd Shape ShapeN Size Slice Snapshot SpaceToBatchND SpaceToDepth
Split SplitV Squeeze StopGradient StridedSlice TensorScatterAdd TensorScatterUpdate Tile Transpose Unique UniqueV2
Unpack UpperBound Where ZerosLike
AvgPool AvgPool3D BiasAdd Conv2D Conv2DBackpropInput Conv3D Conv3DBackpropInputV2 DepthwiseConv2dNative Einsum Elu
FusedBatchNormV3 InTopKV2 L2Loss LeakyRelu LogSoftmax MaxPool MaxPool3D MaxPoolV2 Relu Relu6 Selu Softmax Softplus
Softsign TopKV2
CombinedNonMaxSuppression CropAndResize DecodeAndCropJpeg DecodeBmp DecodeGif DecodeImage DecodeJpeg DecodePng
ExtractJpegShape NonMaxSuppressionV3 NonMaxSuppressionV4 NonMaxSuppressionV5 ResizeArea ResizeBicubic ResizeBilinear
ResizeNearestNeighbor ScaleAndTranslate AsString ReduceJoin StaticRegexFullMatch StaticRegexReplace StringJoin
StringLength StringLower StringSplitV2 StringStrip StringToNumber StringUpper Substr
Assert Case If NoOp PartitionedCall StatefulPartitionedCall StatelessCase StatelessIf StatelessWhile While
EmptyTensorList TensorListConcatV2 TensorListElementShape TensorListFromTensor TensorListGather TensorListGetItem
TensorListLength TensorListPopBack TensorListPushBack TensorListReserve TensorListResize TensorListScatterV2
TensorListSetItem TensorListSplit TensorListStack AssignVariableOp DisableCopyOnRead ReadVariableOp ResourceGather
ResourceGatherNd VarHandleOp VarIsInitializedOp HashTableV2 LookupTableFindV2 LookupTableImportV2 LookupTableSizeV2
"""
ALLOWED = frozenset(_NAMES.split())


def check(folder: pathlib.Path) -> None:
    """Rejects a SavedModel that TensorFlow must not load.

    Raises:
      UserError: an operation is not allowed, or an object, size or file differs from what `timetotrain export` writes.
      OSError, ValueError, tf.errors.OpError, google.protobuf.message.DecodeError: a file is missing or damaged.
    """
    for name in _OTHERS:
        if os.path.lexists(folder / name):
            raise _refused(folder, f"has a {name}, which would be loaded in the place of saved_model.pb")
    model = saved_model_pb2.SavedModel.FromString(read_plain(folder / "saved_model.pb", MOST_GRAPH))
    if len(model.meta_graphs) != 1 or not model.meta_graphs[0].HasField("object_graph_def"):
        raise _refused(folder, "is of TensorFlow 1, or holds several graphs")
    graph = model.meta_graphs[0]
    if graph.asset_file_def:
        raise _refused(folder, "reads files of its own")
    functions = {function.signature.name: function for function in graph.graph_def.library.function}
    constants = 0
    for name in _reached(folder, functions, graph.object_graph_def.concrete_functions):
        for node in functions[name].node_def:
            if node.op not in ALLOWED and node.op not in functions:
                runs = f"runs the operation {node.op[:80]}"
                raise _refused(folder, f"{runs}, which is not one of those that are allowed")
            if node.op == "Const":
                constants += _size(node.attr["value"].tensor)
    if constants > _MOST_CONSTANTS:
        raise _refused(folder, f"has constants of {constants} bytes")
    _check_objects(folder, graph.object_graph_def.nodes)
    weight_files.checked_reader(folder / "variables" / "variables")


def _reached(folder: pathlib.Path, functions: Mapping[str, Any], roots: Iterable[str]) -> Iterable[str]:
    """Returns each function that is reachable from `roots` once; rejects recursive ones."""
    waiting, graph = [*roots], {}
    while waiting:
        name = waiting.pop()
        if name not in functions:
            raise _refused(folder, f"calls a function that it lacks, {name[:80]!r}")
        if name not in graph:
            graph[name] = _called(functions, name)
            waiting += graph[name]
    try:
        return list(graphlib.TopologicalSorter(graph).static_order())
    except graphlib.CycleError as error:
        raise _refused(folder, f"has a function that calls itself, {error.args[1][0][:80]!r}") from error


def _called(functions: Mapping[str, Any], name: str) -> set[str]:
    names = set()
    for node in functions[name].node_def:
        if node.op in functions:
            names.add(node.op)
        for value in node.attr.values():
            names |= {f.name for f in (value.func, *value.list.func) if f.name}
    return names


def _check_objects(folder: pathlib.Path, nodes: Iterable[Any]) -> None:
    for node in nodes:
        kind = node.WhichOneof("kind")
        allowed = kind in _KINDS and (kind != "user_object" or node.user_object.identifier in _TYPES)
        if not allowed or node.registered_name not in _REGISTERED:
            other = node.registered_name or node.user_object.identifier or kind or "nothing"
            raise _refused(folder, f"holds an object of the kind {other[:80]!r}")


def _size(tensor: Any) -> int:
    """Returns a constant's bytes in memory, which exceed its bytes in the file if it repeats one number."""
    sides = [side.size for side in tensor.tensor_shape.dim]
    if any(side < 0 for side in sides):
        return _MOST_CONSTANTS + 1
    try:
        width = tf.as_dtype(tensor.dtype).size or 1
    except TypeError:
        width = 1
    return math.prod(sides) * width


def _refused(folder: pathlib.Path, why: str) -> UserError:
    return UserError(f"{folder}: {why}; load only a SavedModel of `timetotrain export`")
