"""Names of the project's modules for `python -m`, wherever the project lies. TensorFlow-free."""

from __future__ import annotations

# "" in a checkout, where `common` and the benchmarks are packages of their own; "PARENT." where one package holds all.
_PREFIX = __name__.removesuffix("common.launch.modules")


def full_name(name: str) -> str:
    """The name by which Python finds a module of the project, "resnet" or "PARENT.resnet".

    Args:
      name: with or without the parent.
    """
    return name if name.startswith(_PREFIX) else _PREFIX + name
