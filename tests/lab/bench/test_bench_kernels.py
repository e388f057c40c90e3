"""Tests what lab/bench/kernels.py reads from oneDNN's profile."""

from __future__ import annotations

import json
import pathlib

import pytest

from lab.bench import kernels

HEAD = "onednn_verbose,v1,primitive,exec,cpu,"
FORWARD = HEAD + (
    "convolution,brg_conv_fwd:avx512_core,forward_training,src:f32::blocked:acdb::f0 wei:f32:a:blocked:Acdb64a::f0,"
    "attr-scratchpad:user,alg:convolution_direct,"
    "mb4_ic64oc32_ih56oh28kh3sh2dh0ph1_iw56ow28kw3sw2dw0pw1,12.5\n"
)
WEIGHTS = FORWARD.replace("forward_training", "backward_weights").replace(",12.5", ",7.5")
PRODUCT = HEAD + "gemm_api,,undef,src_f32::blocked:ab:f0 wei_f32::blocked:ab:f0,,,100x784:784x528,0.5\n"
REORDER = (
    HEAD + "reorder,jit:uni,undef,src:f32::blocked:cdba::f0 dst:f32::blocked:Acdb64a::f0,,,64x64x3x3,3\n"
)
POOLING = HEAD + "pooling,jit:avx512_core,forward_training,src:f32,,alg:pooling_max,mb4ic64_ih112oh56kh3,2\n"


def test_kernels_are_added_up_by_kind() -> None:
    lines = [
        "onednn_verbose,v1,info,cpu,runtime:threadpool,nthr:2\n",
        FORWARD,
        WEIGHTS,
        PRODUCT,
        REORDER,
        POOLING,
    ]
    found = kernels.kernels(lines)
    each = 2.0 * 4 * 64 * 32 * 28 * 28 * 9
    assert found == {
        "convolutions": {"seconds": pytest.approx(0.02), "calls": 2, "flops": 2 * each},
        "products": {"seconds": pytest.approx(0.0005), "calls": 1, "flops": 2.0 * 100 * 784 * 528},
        "reorders": {"seconds": pytest.approx(0.003), "calls": 1, "flops": 0.0},
        "other kernels": {"seconds": pytest.approx(0.002), "calls": 1, "flops": 0.0},
    }


@pytest.mark.parametrize(
    "kind, problem, wanted",
    [
        ("convolution", "mb2_g8ic64oc64_ih14oh14kh3sh1dh0ph1_iw14ow14kw3sw1dw0pw1", 2 * 2 * 64 * 8 * 196 * 9),
        ("convolution", "mb1_ic3oc8_id8od4kd3_ih16oh8kh1_iw16ow8kw1", 2 * 3 * 8 * 4 * 64 * 3),
        ("matmul", "8x16x64:8x64x32", 2 * 8 * 16 * 64 * 32),
        ("matmul", '8x16x64:8x64x32_n"name"', 2 * 8 * 16 * 64 * 32),
        ("matmul", "1x16x64:8x64x32", 2 * 8 * 16 * 64 * 32),
        ("matmul", "8x16x64:1x64x32", 2 * 8 * 16 * 64 * 32),
        ("reorder", "64x64x3x3", 0),
    ],
)
def test_flops_are_those_of_the_shape(kind: str, problem: str, wanted: float) -> None:
    assert kernels.flops(kind, problem) == wanted


def rounds(seconds: list[float], convolutions: float, flops: float) -> list[dict]:
    row = {"seconds": convolutions, "calls": 1, "flops": flops}
    return [{"seconds": s, "kernels": {"convolutions": row}} for s in seconds]


def test_a_row_is_the_median_round_and_its_ratio_is_taken_within_rounds() -> None:
    ours = rounds([1.0, 2.0, 4.0], 0.5, 1e9)
    row = kernels.summary(rounds([1.1, 2.2, 4.0], 0.8, 1e9), ours, peak_flops=2.5e9)
    assert row["seconds"] == 2.2 and row["ratio_to_ours"] == pytest.approx(1.1)
    assert row["rest_seconds"] == pytest.approx(1.4) and row["of_peak"] == pytest.approx(0.5)


def test_without_a_profile_it_ends_with_one_line() -> None:
    nothing = [{"seconds": 1.0, "kernels": {}}]
    with pytest.raises(SystemExit, match="oneDNN printed no kernels"):
        kernels.summary(nothing, nothing, peak_flops=1.0)


def test_a_case_alternates_its_contenders_under_the_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours takes 1 s of which convolutions take 0.5 s, at half the peak."""

    class Fake:
        def __init__(self, name: str, command: list[str], environment: dict[str, str]) -> None:
            self.time, self.printed = {"ours": 1.0, "tfm_orbit": 1.1, "keras_fit": 1.3}[name], []
            assert environment == kernels.PROFILE and "--one-core" in command

        def seconds(self, steps: int) -> float:
            self.printed = [FORWARD.replace(",12.5", ",500")] * steps
            return self.time * steps

        def close(self) -> None:
            pass

    monkeypatch.setattr(kernels, "Contender", Fake)
    peak = kernels.flops("convolution", "mb4_ic64oc32_ih56oh28kh3_iw56ow28kw3") / 0.25
    found = kernels.measure("resnet-fp32", peak, 3, quick=False)
    assert found["contenders"]["ours"]["of_peak"] == pytest.approx(0.5)
    assert found["contenders"]["keras_fit"]["ratio_to_ours"] == pytest.approx(1.3)


MACHINE = {"cpu": "AMD EPYC", "cores": 2, "load_before": [1.0]}


def test_named_cases_are_added_to_the_file_of_the_same_machine(tmp_path: pathlib.Path) -> None:
    output = tmp_path / "kernels.json"
    assert kernels.kept(output, MACHINE) == {}
    output.write_text(json.dumps({"machine": MACHINE, "step": {"ssd-fp32": {}}}))
    assert kernels.kept(output, {**MACHINE, "load_before": [0.0]}) == {"ssd-fp32": {}}
    with pytest.raises(SystemExit, match="another cores, jax; leave out --cases"):
        kernels.kept(output, {**MACHINE, "cores": 4, "jax": "0.10.2"})
    output.write_text('{"step": {}}')
    with pytest.raises(SystemExit, match="no results of this script"):
        kernels.kept(output, MACHINE)
