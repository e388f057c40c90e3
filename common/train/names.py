"""Names a network's variables by its layers, the same in every process and under every backend.

A name is the path of the layers that hold the variable, then the variable's own name: `layer1.0.conv1/kernel`. A layer
without a given name gets its class's name, numbered among its siblings: `encoder_layer.3/attention/query/kernel`.
tf_keras's own names number all layers that the process has made. A network within a network adds nothing to the path.
"""

import collections
import re
from collections.abc import Iterator, Sequence

import tensorflow as tf
import tf_keras

Layer = tf_keras.layers.Layer


def of_layers(model: tf_keras.Model) -> dict[int, str]:
    """Returns {id(layer): path} for every layer under `model`; a shared layer has its shortest path."""
    return {id(layer): path for path, layer in layers(model)}


def of_variables(model: tf_keras.Model) -> dict[int, str]:
    """Returns {id(variable): name} for the variables of `model`, in their order; all names differ."""
    paths: dict[int, str] = {}
    for path, layer in [("", model), *layers(model)]:
        inner = {id(v) for child in _children(layer) for v in child.variables}
        for variable in layer.variables:
            if id(variable) not in inner:
                paths.setdefault(id(variable), path)
    names = [_joined(paths.get(id(v), ""), stem(v)) for v in model.variables]
    return {id(v): name for v, name in zip(model.variables, _numbered(names))}


def stem(variable: tf.Variable) -> str:
    """Returns a variable's own name, without its layers' names."""
    return variable.name.split(":")[0].rpartition("/")[2]


def layers(model: tf_keras.Model) -> Iterator[tuple[str, Layer]]:
    """Yields (path, layer) for every layer under `model` once, level by level."""
    level, visited = [("", model)], {id(model)}
    while level:
        below = []
        for path, layer in level:
            children = _children(layer)
            for name, child in zip(_numbered([_base(c) for c in children]), children):
                if id(child) not in visited:
                    visited.add(id(child))
                    full_name = path if isinstance(child, tf_keras.Model) else _joined(path, name)
                    below.append((full_name, child))
                    yield full_name, child
        level = below


def _children(layer: Layer) -> list[Layer]:
    return list(layer._flatten_layers(recursive=False, include_self=False))


def _base(layer: Layer) -> str:
    """Returns a layer's given name, or else its class's name in tf_keras's spelling."""
    spelled = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", type(layer).__name__)
    spelled = re.sub(r"([a-z])([A-Z])", r"\1_\2", spelled).lower()
    spelled = f"private{spelled}" if spelled.startswith("_") else spelled
    return spelled if re.fullmatch(rf"{re.escape(spelled)}(_\d+)?", layer.name) else layer.name


def _numbered(names: Sequence[str]) -> list[str]:
    """Returns the names; appends `.0`, `.1`, ... to names that occur more than once."""
    total, counts = collections.Counter(names), collections.Counter[str]()
    numbered = []
    for name in names:
        numbered.append(f"{name}.{counts[name]}" if total[name] > 1 else name)
        counts[name] += 1
    return numbered


def _joined(path: str, name: str) -> str:
    return f"{path}/{name}" if path else name
