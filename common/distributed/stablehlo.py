"""Lowers a compiled tf.function to StableHLO, as a portable artifact that a range of jax versions reads."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from common.errors import UserError

# Artifacts are written for this version of StableHLO, of June 2024: jaxlib promises to read the artifacts of the last
# five years, and TensorFlow 2.20 can write this one.
VERSION = "1.0.0"
DTYPES = {
    "f64": "float64", "f32": "float32", "bf16": "bfloat16", "f16": "float16", "i64": "int64", "i32": "int32",
    "i16": "int16", "i8": "int8", "ui64": "uint64", "ui32": "uint32", "ui16": "uint16", "ui8": "uint8", "i1": "bool",
}  # fmt: skip
# A collective, to where its attributes begin.
_COLLECTIVE = re.compile(
    r'("stablehlo\.(all_reduce|all_gather|reduce_scatter|all_to_all|collective_permute)"\([^()]*\) <\{)'
)
# Those whose groups may be of devices; those of the others are, where they have a channel.
_SAY_DEVICES = ("all_reduce", "all_gather", "reduce_scatter")


@dataclasses.dataclass(frozen=True)
class Lowered:
    """A program: `main(arguments) -> results`.

    Attributes:
      text: StableHLO, with the names of TensorFlow's operations as locations.
      arguments, results: (shape, dtype) of each.
      aliases: result -> the argument whose buffer it replaces.
      captured: tensors that the function closes over; the arguments for them follow those of the call.
      returned: the nest of specs that a call returns; the results for them come first.
    """

    text: str
    arguments: list[tuple[list[int], str]]
    results: list[tuple[list[int], str]]
    aliases: dict[int, int]
    captured: list[Any]
    returned: Any

    def artifact(self, partitioned: bool = False) -> bytes:
        """Returns the portable artifact, MLIR bytecode of StableHLO's versioned dialect.

        Args:
          partitioned: one of N partitions, as jax runs it, in place of one of N replicas.

        Raises:
          UserError: TensorFlow's serializer does not take the program.
        """
        from tensorflow.compiler.mlir.stablehlo import stablehlo

        try:
            text = with_channels(self.text) if partitioned else self.text
            return stablehlo.serialize_portable_artifact_str(text, VERSION)
        except ValueError as error:
            raise UserError(
                f"--export: the program holds an operation that StableHLO {VERSION} cannot express ({error})"
            ) from error

    def custom_calls(self) -> list[str]:
        """Returns the targets of custom calls, which a device's compiler may not know."""
        return sorted(set(re.findall(r"custom_call @([\w.]+)", self.text)))


def with_channels(text: str) -> str:
    """Returns a module whose collectives exchange between the N partitions of a program, not between N replicas.

    jax compiles for partitions alone. A collective with a channel of its own is one between them, and its groups are
    the same numbers.
    """
    numbers = itertools.count(1)

    def with_channel(found: re.Match) -> str:
        devices = "use_global_device_ids, " if found[2] in _SAY_DEVICES else ""
        return f"{found[1]}channel_handle = #stablehlo.channel_handle<handle = {next(numbers)}, type = 1>, {devices}"

    return _COLLECTIVE.sub(with_channel, text)


def lower(function: Callable, batch: Any, what: str, asked: str = "--export") -> Lowered:
    """Traces `function`, a tf.function with jit_compile, with `batch` and lowers it.

    Args:
      function, batch: what is traced, and its only argument.
      what: names the program in errors.
      asked: the flag that asked for it, which errors name.

    Raises:
      UserError: XLA cannot compile it; the message names the operation.
    """
    try:
        traced = function.get_concrete_function(batch)
        text = function.experimental_get_compiler_ir(batch)(stage="stablehlo")
    except (tf.errors.OpError, ValueError, NotImplementedError, TypeError) as error:
        raise UserError(f"{asked}: XLA cannot compile the {what}: {_reason(error)}") from error
    aliases, text = _aliases(text), _portable(text)
    if re.search(r"tensor<[^>]*\?", text):
        raise UserError(f"{asked}: the {what} holds tensors of unknown size; give the network fixed shapes")
    head = re.search(r"func\.func @main\((.*?)\) -> (.*?) \{\n", text).groups()
    arguments, results = (_types(part) for part in head)
    captured = list(traced.captured_inputs)
    returned = traced.structured_outputs
    given, kept = len(tf.nest.flatten(batch)), len(tf.nest.flatten(returned))
    if (len(arguments), len(results)) != (given + len(captured), kept + len(aliases)):
        raise UserError(
            f"{asked}: TensorFlow lowered the {what} with {len(arguments)} arguments and {len(results)} results, "
            f"{given + len(captured)} and {kept + len(aliases)} were expected"
        )
    return Lowered(text, arguments, results, aliases, captured, returned)


def _reason(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith("Exception encountered when calling layer")]
    telling = [
        line for line in lines if "not supported" in line or "No registered" in line or "unsupported" in line
    ]
    return (telling or lines or [type(error).__name__])[0][:300]


def _aliases(text: str) -> dict[int, int]:
    """Reads {result: argument} from the module's attribute mhlo.input_output_alias."""
    pairs = re.findall(r"parameter_number = (\d+) : i64\}, output_index = array<i64(?:: (\d+))?>", text)
    return {int(result or 0): int(argument) for argument, result in pairs}


def _portable(text: str) -> str:
    """Returns the module without what only TensorFlow's XLA reads, and without what depends on where it is made.

    The former are attributes and copies of the dialect mhlo. The latter are paths of Python files, and the numbers that
    TensorFlow gives to functions in their order. So a step has the same artifact wherever it is exported.
    """
    text = re.sub(r"^module @\S+ attributes .*\{$", "module @step {", text, count=1, flags=re.MULTILINE)
    text = re.sub(r'loc\("[^"]*":\d+:\d+\)', "loc(unknown)", text)
    names = re.findall(r"func\.func private @([\w.\-]+)\(", text)
    plain = {name: f"part.{i}" for i, name in enumerate(names)}
    text = re.sub(r"@([\w.\-]+)", lambda found: f"@{plain.get(found[1], found[1])}", text)
    text = re.sub(r"mhlo\.copy (%\S+) : (\S+)", r"stablehlo.reshape \1 : (\2) -> \2", text)
    return re.sub(r" \{mhlo\.frontend_attributes = \{[^{}]*\}\}", "", text)


def _types(text: str) -> list[tuple[list[int], str]]:
    found = []
    for inside in re.findall(r"tensor<([^>]*)>", text):
        *sizes, dtype = inside.split("x")
        found.append(([int(size) for size in sizes], DTYPES[dtype]))
    return found
