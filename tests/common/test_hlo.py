"""Tests the readers of HLO and StableHLO: on stored programs they read what the five readers before them read.

hlo_programs.json holds a step of a convolution, two products and a loop as TensorFlow 2.20 prints it, an all_reduce,
and what was read of them at commit 0c90c2e.
"""

import json
import pathlib

import pytest

from common.export import cost
from common.hlo import hlo_text, stablehlo_text
from common.hlo.sizes import Window, element_bytes, sides
from systems.compile import hlo as optimized

STORED = json.loads((pathlib.Path(__file__).parent / "hlo_programs.json").read_text())
PROGRAMS = {name: "\n".join(lines) + "\n" for name, lines in STORED["programs"].items()}
READ = STORED["read"]


def plain(value):
    """As JSON brings it back."""
    return json.loads(json.dumps(value))


def test_the_counts_of_a_lowered_step_are_those_of_before():
    text = stablehlo_text.portable(PROGRAMS["stablehlo"])
    assert cost.count(text) == READ["cost"] and cost.wide(text) == READ["wide"]
    assert cost.exchanges(PROGRAMS["exchange"]) == READ["exchanges"]
    signature = [
        [[list(shape), stablehlo_text.DTYPES[kind]] for shape, kind in part]
        for part in stablehlo_text.signature(text)
    ]
    assert signature == READ["signature"]
    assert plain(stablehlo_text.aliases(PROGRAMS["stablehlo"])) == READ["aliases"]


@pytest.mark.parametrize("stage", ["hlo", "optimized_hlo"])
def test_the_costs_of_a_program_are_those_of_before(stage):
    program = optimized.Program(PROGRAMS[stage])
    assert {name: plain(getattr(optimized, name)(program)) for name in READ[stage]} == READ[stage]


def test_a_line_is_read_with_its_tuple_its_layouts_and_its_operands():
    text = """
ENTRY %main.4 (a: bf16[8,8]) -> (f32[4], token[]) {
  %w = (s32[]{:T(256)}, /*index=1*/f32[16,<=4]{1,0:T(8,128)}) while((s32[], f32[16]) %a.1), condition=%c, body=%b
  ROOT %s = (bf16[8]{0}, bf16[8]{0}, f32[2]{0}, f32[2]{0}) all-gather-start(bf16[8]{0:T(8)(2,1)} %w, f32[2]{0} %v)
}
"""
    loop, start = hlo_text.Program(text).computations["main.4"]
    assert (loop.opcode, loop.operands, loop.shapes) == ("while", ["a.1"], [("s32", ()), ("f32", (16, 4))])
    assert loop.nbytes == 4 + 16 * 4 * 4 and loop.attribute(r"body=%(\w)") == "b" and not loop.root
    assert (start.base, start.operands, start.nbytes, start.root) == ("all-gather", ["w", "v"], 16, True)


def test_sizes():
    kinds = ("pred", "i1", "s4", "u8", "f8e4m3fn", "bf16", "f32", "c64", "ui64", "token")
    assert [element_bytes(kind) for kind in kinds] == [1, 1, 1, 1, 1, 2, 4, 8, 8, 0]
    assert sides("8,<=4") == (8, 4) and sides("3x5x", "x") == (3, 5) and sides("") == ()


@pytest.mark.parametrize(
    "window", [Window(7, 3, 7, low=1), Window(9, 3, 4, stride=2), Window(5, 2, 9, low=1, input_dilation=2)]
)
def test_pairs_of_a_window_are_those_of_a_loop_over_all_places(window: Window):
    """Naive form: lay out the dilated input with its padding and slide the dilated kernel over it."""
    full = [0] * window.low
    for position in range(window.inputs):
        full += [1] + [0] * (window.input_dilation - 1 if position < window.inputs - 1 else 0)
    full += [0] * 100
    expected = sum(
        full[output * window.stride + tap * window.kernel_dilation]
        for output in range(window.outputs)
        for tap in range(window.taps)
    )
    assert window.pairs() == expected
