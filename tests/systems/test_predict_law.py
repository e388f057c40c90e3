"""Tests forecasts for machines that people rent: names of accelerators, the law of published scores, money, energy."""

import dataclasses
import json
import math
import re

import numpy as np
import pytest

import systems
from common.errors import UserError
from systems.predict import (
    chips,
    document_law,
    fitting,
    hardware,
    law,
    law_fit,
    measured,
    money,
    program_fit,
    scores,
)
from systems.predict.chips import Given
from timetotrain.forecast.cli import main

H100 = chips.chips()["H100-SXM5"] | {"name": "H100-SXM5"}
# Names as v6.0's descriptions, cloud providers and nvidia-smi write them.
NAMES = {
    "NVIDIA H100 80GB HBM3": "H100-SXM5",
    "NVIDIA H100-PCIe-80GB": "H100-PCIe",
    "H100 NVL Tensor Core GPU (PCIe)": "H100-NVL",
    "NVIDIA H200 NVL 141GB": "H200-NVL",
    "NVIDIA Blackwell GPU (B200-SXM-180GB)": "B200",
    "NVIDIA Blackwell Ultra GPU (GB300)": "GB300",
    "NVIDIA A100 - PCIe - 80 GB": "A100-PCIe-80GB",
    "A100-SXM4-40GB": "A100-SXM4-40GB",
    "AMD Instinct MI325X 256GB HBM3e": "MI325X",
    "Intel(R) Gaudi(R) 2 AI Accelerator": "Gaudi 2",
    "Intel Gaudi3": "Gaudi 3",
    "TPU-trillium": "TPU v6e",
    "TPU7x (Ironwood)": "TPU 7x",
    "NVIDIA L40S": "L40S",
    "NVIDIA L40": "L40",
    "GeForce GTX 1080": "",
}


def test_every_accelerator_has_its_figures_and_a_source():
    for name, entry in chips.chips().items():
        assert chips.named(name) == name or entry.get("host"), name
        assert entry["source"] and entry["peak"]["fp32"] > 0 and entry["memory_bandwidth"] > 1e11, name
        assert entry.get("watts") or "power" in entry["source"] and "unpublished" in entry["source"], name


@pytest.mark.parametrize("model", NAMES)
def test_names_as_people_write_them_are_recognised(model):
    assert chips.named(model) == NAMES[model]


def test_every_published_description_is_a_machine_or_says_in_one_line_what_is_missing():
    refused = []
    for row in scores.descriptions():
        try:
            assert hardware.machine(row, None, []).chip["source"]
        except UserError as error:
            assert "\n" not in str(error)
            refused.append((row["round"], row["system"]))
    assert len(scores.descriptions()) == 1058 and len(refused) == 7, refused
    assert all(when < "v1.0" for when, _ in refused)


def test_an_unknown_accelerator_needs_its_figures_and_takes_them():
    unknown = systems.load("h100-8") | {"accelerator_model_name": "Own Chip 1"}
    with pytest.raises(UserError, match="give --peak=TFLOPS --link=GB/S of the accelerator"):
        hardware.machine(unknown, None, [], given=Given(bandwidth=100.0))
    given = hardware.machine(unknown, None, [], given=Given(500.0, 2000.0, 300.0))
    assert given.peak("bf16") == 500e12 and given.memory_bandwidth == 2000e9
    assert given.chip["link_bandwidth"] == 300e9
    other = hardware.machine(systems.load("h100-8"), None, [], given=Given(peak=494.7))
    assert other.peak("bf16") == pytest.approx(H100["peak"]["bf16"] / 2)
    assert other.memory_bandwidth == H100["memory_bandwidth"]


def test_a_left_out_group_equals_a_fit_without_it():
    """The closed form against its naive form: the law fitted to the other rows alone."""
    rows = [row for row in scores.rows() if row.benchmark == "gnmt"]
    whole = law.Law.of(rows, law.committed()["kernel"])
    wrong, deviation = whole.left_out(lambda row: row.key)
    for key in {row.key for row in rows}:
        mine = [i for i, row in enumerate(rows) if row.key == key]
        others = law.Law.of([row for row in rows if row.key != key], law.committed()["kernel"])
        others = dataclasses.replace(others, mean=whole.mean, centre=whole.centre)
        logs, spread = others.predict(law.points([rows[i] for i in mine]))
        published = np.log([rows[i].minutes for i in mine])
        assert published - logs == pytest.approx(wrong[mine], abs=1e-6)
        assert spread == pytest.approx(deviation[mine], rel=1e-6)


@pytest.mark.e2e
def test_the_committed_law_is_what_the_code_gives():
    found = law_fit.refit()
    for part in ("kernel", "deviations"):
        assert found[part] == pytest.approx(law.committed()[part], rel=0.02), (
            "run: python -m systems.predict fit"
        )


def test_the_law_holds_its_bars_on_what_it_did_not_see():
    system, round_ = (law_fit.left_out(group) for group in ("system", "round"))
    assert len(law_fit.ours(system)) > 600
    for tests, most in ((system, (0.12, 0.30)), (round_, (0.18, 0.45))):
        for chosen in (tests, law_fit.ours(tests)):
            found = law_fit.errors(chosen)
            assert found[0] <= most[0] and found[1] <= most[1], found
            assert 0.85 <= law_fit.coverage(chosen) <= 0.95
    fourth = law_fit.errors([t for t in law_fit.ours(system) if t.row.chip == "TPU v4"])
    assert fourth[0] <= 0.15 and fourth[1] <= 0.35


def test_tpu_v4_is_off_where_no_score_of_its_own_size_is_left():
    every = [t for t in law_fit.left_out("system") if t.row.chip == "TPU v4"]
    near = [t for t in every if document_law.apart(t) <= 4]
    far = [t for t in every if t not in near]
    assert law_fit.errors(every)[0] <= 0.15 and law_fit.errors(near)[1] <= 0.35 < law_fit.errors(far)[1]
    assert all(t in far for t in sorted(every, key=lambda t: -t.error)[:4])


def test_intervals_of_families_with_constants_of_their_own_hold():
    programs = [t for t in program_fit.committed_tests() if t.row.family]
    formulas = fitting.committed_tests()
    assert 0.85 <= fitting.coverage(programs, program_fit.errors()) <= 0.95
    for family in fitting.FAMILIES:
        mine = [t for t in formulas if t.row.family == family]
        assert 0.85 <= fitting.coverage(mine, fitting.errors(family)) <= 0.95


def test_six_measured_steps_are_predicted_by_the_other_five():
    steps, one = measured.measured(), measured.machine_of_steps()
    assert len(steps) == 6
    known = [step for step in steps if measured.kernels(step.network) is not None]
    for form, name, chosen in (
        (measured.seconds, "steps", steps),
        (measured.kernel_seconds, "kernels", known),
    ):
        assert {step.network for step in chosen} == {*measured.left_out(name)}
        for step in chosen:
            others = measured.fit([other for other in chosen if other is not step], one, form)
            error = measured.predicted(step, one, *others, form) / step.seconds - 1
            assert error == pytest.approx(measured.left_out(name)[step.network], abs=1e-3)
            assert abs(error) <= 0.20
    assert max(map(abs, measured.left_out("kernels").values())) < max(
        map(abs, measured.left_out("steps").values())
    )


def test_a_step_by_kernels_is_the_longest_of_three_for_each():
    """Against the naive sum, at the measured batch; half the batch takes half the time, but for update and launches."""
    one, step = measured.machine_of_steps(), next(s for s in measured.measured() if s.network == "gnmt")
    each = measured.kernels("gnmt")
    naive = sum(
        t * max(f / (0.5 * one.peak("bf16")), b / (0.7 * one.memory_bandwidth), 3e-6) for f, b, t in each
    )
    whole = measured.kernel_seconds(step, one, 0.5, 0.7, step.flops, step.batch, "bf16")
    assert sum(whole) == pytest.approx(naive, rel=1e-9) and min(whole) > 0
    half = measured.kernel_seconds(step, one, 0.5, 0.7, step.flops / 2, step.batch / 2, "bf16")
    assert 0.4 * sum(whole) < sum(half) < 0.9 * sum(whole)


def test_terms_are_scaled_to_what_published_systems_take(capsys):
    assert main(["predict", "resnet", "--system=h100-8", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["step_from"] == "kernels of the program that was measured on an H200"
    told, total = found["published_systems"], found["run_seconds"]["total"]
    assert total == pytest.approx(60 * told["minutes"])
    assert found["interval_seconds"] == pytest.approx([60 * told["low"], 60 * told["high"]])
    assert main(["predict", "resnet", "--system=h100-8", "--epochs=20", "--json"]) == 0
    fewer = json.loads(capsys.readouterr().out)
    assert fewer["published_systems"] == told and fewer["run_seconds"]["total"] < 0.7 * total


def test_more_accelerators_or_faster_ones_take_less_time():
    eight, many = (law.estimate("bert", H100, n) for n in (8, 64))
    assert many.minutes < eight.minutes and eight.low < eight.minutes < eight.high
    fast = law.estimate("bert", H100 | {"name": "own", "peak": {"bf16": 4e15}, "memory_bandwidth": 1.4e13}, 8)
    assert fast.minutes < eight.minutes and fast.high / fast.low > eight.high / eight.low


@pytest.mark.parametrize(
    "benchmark, accelerators, reason", [("gpt3", 8, "accelerators, not 8"), ("resnet", 100_000, "not 100000")]
)
def test_the_law_says_when_it_cannot_say(benchmark, accelerators, reason):
    assert reason in law.estimate(benchmark, H100, accelerators).reason


def test_a_processor_has_no_interval_of_accelerators():
    for name in ("Xeon with AMX", "EPYC 9004"):
        found = law.estimate("resnet", chips.chips()[name] | {"name": name}, 8)
        assert "processors without accelerators" in found.reason
    assert {law.vendor(row.chip) for row in scores.rows()} == {
        *("NVIDIA", "Google", "AMD", "Intel", "Huawei", "Graphcore")
    }


def test_a_benchmark_of_others_is_forecast_by_published_scores_alone(tmp_path, capsys):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(systems.load("b200-8") | {"system_name": "mine"}))
    assert main(["predict", "llama31_8b", f"--system={path}", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["system"] == "mine" and found["published_systems"]["reason"] == ""
    published = [
        r for r in scores.rows() if (r.benchmark, r.chip, r.accelerators) == ("llama31_8b", "B200", 8)
    ]
    low, high = (found["published_systems"][name] for name in ("low", "high"))
    assert sum(low <= row.minutes <= high for row in published) >= 0.8 * len(published) > 3
    assert main(["predict", "llama31_8b", f"--system={path}", "--batch=8"]) == 2
    assert "for our benchmarks" in capsys.readouterr().err


def test_no_money_or_energy_is_told_where_the_law_cannot_say(capsys):
    assert main(["predict", "gpt3", "--system=h100-8", "--price=2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["published_systems"]["reason"] and not {"cost", "energy_kwh"} & {*found}
    assert main(["predict", "bert", "--system=h100-8", "--price=2", "--json"]) == 0
    assert {"cost", "energy_kwh"} <= {*json.loads(capsys.readouterr().out)}


def test_cost_is_accelerators_times_hours_times_price(capsys):
    flags = ["--system=h100-8", "--price=2", "--runs=3", "--trials=10", "--json"]
    assert main(["predict", "resnet", *flags]) == 0
    found = json.loads(capsys.readouterr().out)
    one = found["run_seconds"]["total"] / 3600 * 8 * 2
    assert [found["cost"][name] for name in ("run", "submission", "search")] == pytest.approx(
        [one, 3 * one, 10 * one]
    )


def test_every_price_and_accelerator_says_where_it_comes_from():
    for name, price in money.prices().items():
        assert re.search(r"\w; (from a copy, |from a third party, )?20\d\d(-\d\d)?$", price.source), name
    assert "from a copy, 2024-12" in money.price("TPU v4", None, None).source
    remembered = [name for name, entry in chips.chips().items() if entry["from"] == "memory"]
    assert remembered == ["Gaudi"]
    for name, entry in chips.chips().items():
        assert entry["from"] in ("vendor", "third party", "memory") and entry["date"], name


def test_the_interval_of_a_forecast_misses_more_of_a_new_round():
    """The share that the page gives: inside the printed interval, whatever the round's own errors are."""
    rounds = [one for one in law_fit.left_out("round") if one.row.benchmark == "llama31_405b"]
    widths = law.committed()["deviations"]["llama31_405b"]
    naive = [abs(math.log(one.row.minutes / one.minutes)) / one.deviation <= widths for one in rounds]
    assert law_fit.held(rounds) == sum(naive) / len(naive) < 0.75 < law_fit.coverage(rounds)


def test_a_table_of_prices_replaces_ours_and_a_wrong_one_is_named(tmp_path, capsys):
    table = tmp_path / "prices.json"
    table.write_text('{"date": "2030-01", "prices": {"NVIDIA H100 80GB HBM3": [1.5, "mine"]}}')
    assert money.price("H100-SXM5", None, table) == money.Price(1.5, "mine; table of 2030-01")
    assert money.price("B200", None, table) is None
    table.write_text(
        '{"prices": {"B200": {"usd": 2, "source": "s", "date": "2029", "from": "memory"}, "L4": 1}}'
    )
    assert money.price("B200", None, table) == money.Price(2.0, "s; from memory, 2029")
    assert money.price("L4", None, table) == money.Price(1.0, "; table of no date")
    for content in ("", "[" * 100_000, "[]", '{"prices": {"H100": -1}}', '{"prices": {"H100": "dear"}}'):
        table.write_text(content)
        assert main(["predict", "resnet", "--system=h100-8", f"--prices={table}"]) == 2
        assert "--prices=" in capsys.readouterr().err


def test_a_picture_of_sizes_and_its_bad_name(tmp_path, capsys):
    path = tmp_path / "sizes.png"
    assert main(["predict", "bert", "--system=h100-8", f"--sizes-plot={path}"]) == 0
    assert path.stat().st_size > 5_000
    assert main(["predict", "bert", "--system=h100-8", f"--sizes-plot={tmp_path}/none/x.png"]) == 2
    assert main(["predict", "mnist", "--system=h100-8", "--sizes"]) == 2
    assert "no scores of mnist are published" in capsys.readouterr().err


def test_the_cheapest_within_a_deadline_and_the_fastest_within_a_budget():
    cost = money.Price(2.0, "")
    found = money.sizes("bert", H100, cost, 8, 1024)
    limit = sorted(size.minutes for size in found)[2]
    best = money.cheapest(found, limit)
    assert best.minutes <= limit and best.dollars == min(s.dollars for s in found if s.minutes <= limit)
    budget = sorted(size.dollars for size in found)[2]
    fast = money.fastest(found, budget)
    assert fast.dollars <= budget and fast.minutes == min(s.minutes for s in found if s.dollars <= budget)
    assert money.cheapest(found, 0.001) is None and money.fastest(found, 0.001) is None


def test_energy_of_published_power_results_without_their_submitter():
    """Each is predicted from the other submitters' ratio of watts to boards' limits."""
    assert len(money.powers()) >= 28
    for one in money.powers():
        chip = chips.chips()[one.chip] | {"name": one.chip}
        found = money.energy(chip, one.accelerators, one.minutes, None, money.maker(one.org))
        assert abs(math.log(found.kwh / one.kwh)) < math.log(1.35), one
    assert money.energy(chips.chips()["TPU v6e"], 8, 10.0, None) is None
