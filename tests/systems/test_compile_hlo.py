"""Tests how a compiled program's text is read, and which topology a preset compiles for."""

import pytest

from common.config import benchmarks
from systems.compile import hlo
from systems.compile.targets import MEGACORE, NAMES, kind_of, kind_of_preset, target, torus

CYCLES = 'backend_config={"estimated_cycles":"%d"}'
PROGRAM = """HloModule m, replica_count=8

%inner (p: bf16[8,8]) -> bf16[8,8] {
  %p = bf16[8,8]{1,0} parameter(0)
  ROOT %c = bf16[8,8]{1,0} convolution(%p, %p), dim_labels=bf_io->bf
}

%moved (p: f32[4,2]) -> f32[2,4] {
  %p.1 = f32[4,2]{1,0} parameter(0)
  ROOT %t = f32[2,4]{1,0} transpose(%p.1), dimensions={1,0}
}

%body (s: (s32[], f32[16])) -> (s32[], f32[16]) {
  %s = (s32[], f32[16]{0}) parameter(0)
  %x = f32[16]{0} get-tuple-element(%s), index=1
  %y = f32[16]{0} add(%x, %x), backend_config={"estimated_cycles":"5"}
  %r = f32[16]{0} all-reduce(%y), replica_groups={{0,1},{2,3},{4,5},{6,7}}, to_apply=%sum
  ROOT %out = (s32[], f32[16]{0}) tuple(%s, %r)
}

ENTRY %main (a: bf16[8,8], b: f32[4,2], s: (s32[], f32[16])) -> bf16[8,8] {
  %a = bf16[8,8]{1,0} parameter(0)
  %b = f32[4,2]{1,0} parameter(1)
  %s.1 = (s32[], f32[16]{0}) parameter(2)
  %f = bf16[8,8]{1,0} fusion(%a), calls=%inner, metadata={op_name="net/conv/C"}, <100>
  %g = bf16[8,8]{1,0} fusion(%f), calls=%inner, metadata={op_name="gradient_tape/net/conv/D"}, <50>
  %m = f32[2,4]{1,0} fusion(%b), kind=kLoop, calls=%moved, backend_config={"estimated_cycles":"7"}
  %w = (s32[], f32[16]{0}) while(%s.1), condition=%cond, body=%body, backend_config={"known_trip_count":{"n":"3"}}
  %h = (bf16[8,8]{1,0}, /*index=1*/bf16[8,8]{1,0}) collective-permute-start(%g), source_target_pairs={{0,1},{1,0}}
  %i = bf16[8,8]{1,0} collective-permute-done(%h)
  %k = s64[2]{0} add(%i, %i)
  ROOT %z = bf16[8,8]{1,0} all-gather(%i), replica_groups=[2,4]<=[8], dimensions={0}
}
"""
for _cycles in (100, 50):
    PROGRAM = PROGRAM.replace(f"<{_cycles}>", CYCLES % _cycles)


@pytest.fixture
def program() -> hlo.Program:
    return hlo.Program(PROGRAM)


def test_cycles_count_loops_as_often_as_they_run_and_layers_both_ways(program: hlo.Program) -> None:
    cycles = hlo.cycles(program)
    assert cycles["total"] == 100 + 50 + 7 + 3 * 5
    assert cycles["by_kind"] == {"matrix": 150, "other": 15, "copy": 7}
    assert cycles["by_layer"]["net/conv"] == 150 and cycles["loops_of_unknown_length"] == 0


def test_collectives_have_groups_counts_and_bytes(program: hlo.Program) -> None:
    rows = {row["operation"]: row for row in hlo.collectives(program)}
    assert (rows["all-reduce"]["groups"], rows["all-reduce"]["group_size"]) == (4, 2)
    assert (rows["all-reduce"]["count"], rows["all-reduce"]["bytes"]) == (3, 3 * 16 * 4)
    assert (rows["all-gather"]["groups"], rows["all-gather"]["group_size"]) == (2, 4)
    assert (rows["collective-permute"]["groups"], rows["collective-permute"]["bytes"]) == (2, 8 * 8 * 2)
    assert rows["collective-permute"]["distances"] == [-1, 1] and "distances" not in rows["all-reduce"]


def test_a_loop_s_length_is_its_condition_s_bound() -> None:
    text = """
%bound (s: (s32[], f32[4])) -> pred[] {
  %c = s32[]{:T(256)} constant(30)
  %s = (s32[]{:T(256)}, f32[4]{0}) parameter(0)
  %g = s32[]{:T(256)} get-tuple-element(%s), index=0
  ROOT %less = pred[]{:T(1024)} compare(%g, %c), direction=LT
}

%open (s: (s32[], f32[4])) -> pred[] {
  %s.1 = (s32[]{:T(256)}, f32[4]{0}) parameter(0)
  ROOT %g.1 = pred[] get-tuple-element(%s.1), index=0
}

%body (s: (s32[], f32[4])) -> (s32[], f32[4]) {
  ROOT %y = f32[4]{0} add(%x, %x), backend_config={"estimated_cycles":"5"}
}

ENTRY %main (a: f32[4]) -> f32[4] {
  %w = (s32[], f32[4]{0}) while(%a), condition=%bound, body=%body
  ROOT %v = (s32[], f32[4]{0}) while(%w), condition=%open, body=%body
}
"""
    cycles = hlo.cycles(hlo.Program(text))
    assert cycles["total"] == 31 * 5 and cycles["loops_of_unknown_length"] == 1


def test_products_in_loops_and_shared_branches_are_found() -> None:
    text = """
%step (s: f32[4]) -> f32[4] {
  %f = bf16[8,16]{1,0} fusion(%s), calls=%inside
  %d = f32[4,4]{1,0} dot(%s, %s), lhs_contracting_dims={}
}

%inside (p: bf16[8]) -> bf16[8,16] {
  ROOT %c = bf16[8,16]{1,0} convolution(%p, %p), dim_labels=bf_io->bf
}

ENTRY %main (a: f32[4]) -> f32[4] {
  %w = f32[4]{0} while(%a), condition=%cond, body=%step
  %x = f32[4]{0} conditional(%i, %a, %a, %a), branch_computations={%p, %q, %r}
  ROOT %y = f32[4]{0} conditional(%t, %a, %a), branch_computations={%p, %q}
}
"""
    program = hlo.Program(text)
    assert hlo.loop_products(program) == {"bf16[8,16]": 1, "f32[4,4]": 1}
    assert hlo.shared_branches(program) == [3]


def test_copies_and_wide_arithmetic_are_found(program: hlo.Program) -> None:
    assert hlo.copies(program) == {"count": 1, "bytes": 32, "cycles": 7}
    assert hlo.wide_arithmetic(program) == {"add": 1}


@pytest.mark.parametrize(
    ("hardware", "kind", "devices", "topology"),
    [
        ("tpu-v3-2048", "tpu-v3", 2048, "v3:32x32"),
        ("tpu-v3-32", "tpu-v3", 32, "v3:4x4"),
        ("tpu-v3-8192", "tpu-v3", 8192, "v3:32x128"),
        ("tpu-v4-128", "tpu-v4", 128, "v4:4x4x4"),
        ("tpu-v4-megacore-64", MEGACORE, 64, "v4:4x4x4"),
        ("v100-8", "v100", 8, "1x1x8"),
        ("summit-256", "v100", 6, "1x1x6"),
    ],
)
def test_a_preset_s_machine_has_a_topology(hardware: str, kind: str, devices: int, topology: str) -> None:
    assert kind_of(hardware) == kind
    machine = target(kind, devices)
    assert machine.topology == topology and machine.devices >= devices


def test_replicas_that_are_chips_of_a_tpu_v4_have_both_cores() -> None:
    """`docs/sources.md`: batch 8192 on tpu-v4-128 with batch norm over the 128 images of one replica is 64 replicas."""
    presets = benchmarks.module("resnet", "presets").PRESETS
    assert [presets[f"tpu-v4-{cores}"].num_replicas for cores in (16, 128, 512)] == [16, 64, 512]
    kinds = [kind_of_preset(presets[f"tpu-v4-{cores}"]) for cores in (16, 128, 512)]
    assert kinds == ["tpu-v4", MEGACORE, "tpu-v4"]
    assert target(MEGACORE, 64).chip_config == "megacore" and target(MEGACORE, 64).devices == 64
    assert target(MEGACORE, 64).memory == 2 * target("tpu-v4", 64).memory


def test_every_kind_has_memory_and_a_torus_holds_its_chips() -> None:
    for kind in NAMES:
        assert target(kind, 8).memory >= 8 * 2**30
    for chips in (1, 2, 3, 8, 64, 100):
        sides = torus(chips, 3)
        assert sides == tuple(sorted(sides)) and sides[0] * sides[1] * sides[2] >= chips
