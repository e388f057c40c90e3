"""Lowers a compiled tf.function to StableHLO, as a portable artifact that a range of jax versions reads."""

import dataclasses
import itertools
import re
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from common.errors import UserError
from common.hlo import stablehlo_text
from common.hlo.stablehlo_text import DTYPES

# Artifacts are written for this version of StableHLO, of June 2024. jaxlib promises to read artifacts of the last
# five years, and TensorFlow 2.20 can write this version.
VERSION = "1.0.0"
# Matches a collective up to where its attributes begin.
_COLLECTIVE = re.compile(
    r'("stablehlo\.(all_reduce|all_gather|reduce_scatter|all_to_all|collective_permute)"\([^()]*\) <\{)'
)
# Collectives that need `use_global_device_ids` to group by device; the others do so as soon as they have a channel.
_SAY_DEVICES = ("all_reduce", "all_gather", "reduce_scatter")


@dataclasses.dataclass(frozen=True)
class Lowered:
    """A program: `main(arguments) -> results`.

    Attributes:
      text: StableHLO, with the names of TensorFlow's operations as locations.
      arguments, results: (shape, dtype) of each.
      aliases: result -> the argument whose buffer it replaces.
      captured: tensors that the function closes over; their arguments follow the call's.
      returned: the nest of specs that a call returns; their results come first.
    """

    text: str
    arguments: list[tuple[list[int], str]]
    results: list[tuple[list[int], str]]
    aliases: dict[int, int]
    captured: list[Any]
    returned: Any

    def artifact(self, partitioned: bool = False) -> bytes:
        """Returns the portable artifact, MLIR bytecode of StableHLO's versioned dialect.

        Raises UserError if TensorFlow's serializer rejects the program.

        Args:
          partitioned: write one of N partitions, as jax runs it, instead of one of N replicas.
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
        """Returns the targets of custom calls; a device's compiler may not know them."""
        return stablehlo_text.custom_calls(self.text)


def with_channels(text: str) -> str:
    """Returns a module whose collectives exchange between a program's N partitions instead of N replicas.

    jax compiles for partitions only. A collective with its own channel exchanges between partitions; its groups keep
    the same numbers.
    """
    numbers = itertools.count(1)

    def with_channel(match: re.Match) -> str:
        devices = "use_global_device_ids, " if match[2] in _SAY_DEVICES else ""
        return f"{match[1]}channel_handle = #stablehlo.channel_handle<handle = {next(numbers)}, type = 1>, {devices}"

    return _COLLECTIVE.sub(with_channel, text)


def lower(function: Callable, batch: Any, name: str, flag: str = "--export") -> Lowered:
    """Traces `function`, a tf.function with jit_compile, with `batch` and lowers it.

    Raises UserError if XLA cannot compile it; the message names the operation.

    Args:
      function, batch: the function to trace, and its only argument.
      name: the program's name in errors.
      flag: the flag that requested the lowering, for errors.
    """
    try:
        traced = function.get_concrete_function(batch)
        text = function.experimental_get_compiler_ir(batch)(stage="stablehlo")
    except (tf.errors.OpError, ValueError, NotImplementedError, TypeError) as error:
        raise UserError(f"{flag}: XLA cannot compile the {name}: {_reason(error)}") from error
    aliases, text = stablehlo_text.aliases(text), stablehlo_text.portable(text)
    if stablehlo_text.has_unknown_sizes(text):
        raise UserError(f"{flag}: the {name} holds tensors of unknown size; give the network fixed shapes")
    arguments, results = (
        [(list(shape), DTYPES[kind]) for shape, kind in part] for part in stablehlo_text.signature(text)
    )
    captured = list(traced.captured_inputs)
    returned = traced.structured_outputs
    argument_count, returned_count = len(tf.nest.flatten(batch)), len(tf.nest.flatten(returned))
    if (len(arguments), len(results)) != (argument_count + len(captured), returned_count + len(aliases)):
        raise UserError(
            f"{flag}: TensorFlow lowered the {name} with {len(arguments)} arguments and {len(results)} results, "
            f"{argument_count + len(captured)} and {returned_count + len(aliases)} were expected"
        )
    return Lowered(text, arguments, results, aliases, captured, returned)


def _reason(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith("Exception encountered when calling layer")]
    telling = [
        line for line in lines if "not supported" in line or "No registered" in line or "unsupported" in line
    ]
    return (telling or lines or [type(error).__name__])[0][:300]
