"""Tests the law of published scores: names of accelerators, the fit, the errors of what is left out, money, memory."""

import csv
import dataclasses
import math

import numpy as np
import pytest

import systems
from common.errors import UserError
from lab.bench import kernel_fit, law_fit
from systems.forecast import (
    accelerators,
    errors,
    law,
    machine,
    memory,
    money,
    scores,
)
from systems.forecast.accelerators import UserFigures

H100 = accelerators.table()["H100-SXM5"] | {"name": "H100-SXM5"}
# Names as v6.0's descriptions, cloud providers and nvidia-smi write them.
NAMES = {
    "NVIDIA H100 80GB HBM3": "H100-SXM5", "NVIDIA H100-PCIe-80GB": "H100-PCIe",
    "H100 NVL Tensor Core GPU (PCIe)": "H100-NVL", "NVIDIA H200 NVL 141GB": "H200-NVL",
    "NVIDIA Blackwell GPU (B200-SXM-180GB)": "B200", "NVIDIA Blackwell Ultra GPU (GB300)": "GB300",
    "NVIDIA A100 - PCIe - 80 GB": "A100-PCIe-80GB", "A100-SXM4-40GB": "A100-SXM4-40GB", "NVIDIA A10": "A10",
    "NVIDIA A10G": "A10G", "AMD Instinct MI325X 256GB HBM3e": "MI325X",
    "Intel(R) Gaudi(R) 2 AI Accelerator": "Gaudi 2", "Intel Gaudi3": "Gaudi 3", "TPU-trillium": "TPU v6e",
    "TPU7x (Ironwood)": "TPU 7x", "RTX4090": "RTX 4090", "TPUv6e": "TPU v6e", "Gaudi3": "Gaudi 3",
    "NVIDIA L40S": "L40S", "NVIDIA L40": "L40", "GeForce GTX 1080": "",
}  # fmt: skip


@pytest.fixture(scope="module")
def few():
    """A law of the four rounds up to v1.1."""
    rows = [row for row in scores.rows() if row.year < scores.ROUNDS["v2.0"]]
    return law.Law.fit(rows, law.committed()["kernel"])


def test_every_accelerator_has_its_figures_and_a_source():
    for name, entry in accelerators.table().items():
        assert entry["source"] and entry["date"] and "from memory" not in entry["source"].lower(), name
        if not entry.get("host"):
            assert accelerators.name_in(name) == name and entry["peak"]["bf16"] > 0, name
            assert entry["memory"] or "memory" not in entry["source"].split(".")[0], name


@pytest.mark.parametrize("model", NAMES)
def test_names_as_people_write_them_are_recognized(model):
    assert accelerators.name_in(model) == NAMES[model]


def test_every_table_of_scores_is_read():
    """A round's file that lies unread fails: all rows of all files with a known accelerator are scores."""
    read = {(row.round, row.org, row.system) for row in scores.published()}
    for path in scores.files():
        with path.open(encoding="utf-8") as lines:
            rows = list(csv.DictReader(lines))
        assert {row["round"] for row in rows} <= set(scores.ROUNDS), path
        matches = [row for row in rows if (row["round"], row["org"], row["system"]) in read]
        assert len(matches) >= 0.97 * len(rows), path
    assert set(scores.ROUNDS) == {row.round for row in scores.rows()}
    assert {"gpt_oss_20b", "deepseekv3_671b"} <= {*scores.benchmarks()}


def test_every_published_description_is_a_machine_or_says_in_one_line_what_is_missing():
    refused = []
    for row in scores.descriptions():
        try:
            assert machine.machine(row, None, []).chip["source"]
        except UserError as error:
            assert "\n" not in str(error)
            refused.append(row["round"])
    assert len(refused) <= 7 and all(when < "v1.0" for when in refused)


@pytest.mark.parametrize(
    "name, many, chip",
    [
        ("8xH100-SXM5", 8, "H100-SXM5"),
        ("4xA100-SXM4-80GB", 4, "A100-SXM4-80GB"),
        ("a100-8", 8, "A100-SXM4-40GB"),
        ("64xTPUv6e", 64, "TPU v6e"),
        ("p5en.48xlarge", 8, "H200-SXM"),
        ("a3-ultragpu-8g", 8, "H200-SXM"),
        ("ND H200 v5", 8, "H200-SXM"),
        ("4xp5.48xlarge", 32, "H100-SXM5"),
    ],
)
def test_a_machine_is_named_without_a_file(name, many, chip):
    notes = []
    actual = machine.machine(machine.load(name), None, notes)
    assert (actual.accelerators, actual.chip["name"]) == (many, chip)
    assert any("A100-SXM4-80GB" in note for note in notes) == (name == "a100-8")


def test_an_unknown_accelerator_needs_its_figures_and_takes_them():
    unknown = systems.load("h100-8") | {"accelerator_model_name": "Own Chip 1"}
    with pytest.raises(UserError, match="give --peak=TFLOPS of the accelerator"):
        machine.machine(unknown, None, [], figures=UserFigures(bandwidth=100.0))
    actual = machine.machine(unknown, None, [], figures=UserFigures(500.0, 2000.0))
    assert actual.chip["peak"]["bf16"] == 500e12 and actual.chip["memory_bandwidth"] == 2000e9
    with pytest.raises(UserError, match="--peak=TFLOPS and --bandwidth=GB/S, or a JSON file"):
        machine.load("1xRTX5090")
    figures = UserFigures(209.5, 1792)
    bare = machine.machine(machine.load("1xRTX5090", figures), None, [], figures=figures)
    assert (bare.accelerators, bare.chip["name"]) == (1, "RTX5090")


@pytest.mark.parametrize(
    "full, bare",
    [("NVIDIA GeForce RTX 5090", "RTX 5090"), ("AMD Instinct MI300A", "MI300A"), ("RTX5090", "RTX 5090")],
)
def test_a_maker_is_read_from_the_full_name(full, bare):
    assert accelerators.maker(full) == accelerators.maker(bare) in ("NVIDIA", "AMD")
    assert accelerators.family(full) == accelerators.family(bare)


def test_a_score_that_was_sent_again_counts_once():
    keys = [(row.benchmark, row.accelerators, f"{row.minutes:.4f}") for row in scores.rows()]
    assert len(keys) == len(set(keys)) == len(scores.published()) - 196
    first = next(
        r
        for r in scores.rows()
        if (r.benchmark, r.accelerators, f"{r.minutes:.2f}") == ("rnnt", 128, "17.38")
    )
    assert first.round == min(
        r.round
        for r in scores.published()
        if (r.benchmark, f"{r.minutes:.4f}") == ("rnnt", f"{first.minutes:.4f}")
    )


def test_the_kernel_s_fit_follows_the_gradient_of_the_likelihood(few):
    """The gradient equals differences of the likelihood, and a fit raises it, with earlier rounds alone."""
    some = [row for row in few.rows if row.year < scores.ROUNDS["v1.0"]]
    at, goals, weights = law.points(some), law.goal(some, law.points(some)), np.ones(len(some))
    value, gradient = kernel_fit.likelihood(at, goals, weights, kernel_fit.START)
    for name in ("many", "noise", "l_date", "all_maker_date"):
        ends = [
            kernel_fit.likelihood(
                at, goals, weights, kernel_fit.START | {name: kernel_fit.START[name] * factor}
            )[0]
            for factor in (math.exp(1e-4), math.exp(-1e-4))
        ]
        assert (ends[0] - ends[1]) / 2e-4 == pytest.approx(gradient[name], rel=0.01, abs=0.01), name
    numbers = kernel_fit.fit(some)
    assert kernel_fit.likelihood(at, goals, law.Law.fit(some, numbers).weights, numbers)[0] > value


def test_a_left_out_group_equals_a_fit_without_it(few):
    """The closed form against its naive form: the law of the other rows with the same weights."""
    tests = {(t.row.key, t.row.benchmark): t for t in law_fit.left_out(few, "system", (2.0, 4.0))}
    for (key, benchmark), test in list(tests.items())[:4]:
        stay = [i for i, row in enumerate(few.rows) if row.benchmark != benchmark or row.key != key]
        rows, at, weights = [few.rows[i] for i in stay], few.at.take(stay), few.weights[stay]
        covariance = law.kernel(at, at, few.numbers) + np.diag(few.numbers["noise"] ** 2 / weights)
        pull = np.linalg.solve(covariance, law.goal(rows, at) - few.mean)
        naive = dataclasses.replace(few, rows=rows, at=at, weights=weights, pull=pull)
        naive = dataclasses.replace(naive, inverse=np.linalg.inv(covariance))
        logs, deviation = naive.predict(law.points([test.row]))
        assert math.log(test.row.minutes) - logs[0] == pytest.approx(test.wrong, abs=1e-6)
        assert deviation[0] == pytest.approx(test.deviation, rel=1e-5)


def test_a_bound_of_the_deviation_is_above_it(few):
    exact = few.curve("resnet", H100, [8, 64], 2022.0)
    bound = dataclasses.replace(few, inverse=None).curve("resnet", H100, [8, 64], 2022.0)
    assert exact[0] == pytest.approx(bound[0]) and np.all(exact[1] <= bound[1] + 1e-9)


def test_an_outlier_weighs_little(few):
    rows = list(few.rows)
    far = dataclasses.replace(rows[0], minutes=10 * rows[0].minutes)
    assert law.Law.fit([far, *rows[1:]], few.numbers).weights[0] < 0.1 < few.weights[0]


def test_the_committed_law_solves_its_equations():
    """The pull times the scores' covariance is their left side; the weights are those of the noise that remains."""
    one = law.law()
    noise = one.numbers["noise"] ** 2 / one.weights
    goals = law.kernel(one.at, one.at, one.numbers) @ one.pull + noise * one.pull
    assert goals == pytest.approx(law.goal(one.rows, one.at) - one.mean, abs=0.01), (
        "python -m lab.bench.law_fit"
    )


def test_the_error_of_a_round_is_better_than_a_look_up():
    """v1.1 from earlier rounds: the law is better than the nearest count at the 90th percentile."""
    row = law_fit.summary(law_fit.later(law.committed()["kernel"], ["v1.1"]))
    assert row["scores"] > 140 and row["nearest count"]["law"][1] < row["nearest count"]["look-up"][1]


@pytest.mark.parametrize("group", ["system", "accelerator"])
def test_the_errors_of_groups_are_what_the_code_gives(group):
    committed = errors.table()["left out"][group]
    width = law.committed()["width"]
    summary = law_fit.summary(law_fit.left_out(law.law(), group, (width, width)))
    assert summary["law"] == pytest.approx(committed["law"], rel=0.02)
    assert summary["inside"] == pytest.approx(committed["inside"], abs=0.01)
    assert summary["same count"]["look-up"] == pytest.approx(committed["same count"]["look-up"], rel=0.02)


def test_without_an_accelerator_none_of_its_scores_is_used(few):
    tests = law_fit.left_out(few, "accelerator", (2.0, 4.0))
    assert {test.distance for test in tests} == {errors.NEW}


@pytest.mark.e2e
def test_the_committed_errors_are_what_the_code_gives():
    content, wrong = law_fit.refit()
    committed = errors.table()
    assert content["width"] == pytest.approx(law.committed()["width"], rel=0.01)
    for part in ("left out", "distance"):
        for name, row in wrong[part].items():
            assert row["law"] == pytest.approx(committed[part][name]["law"], rel=0.02), name


def test_an_interval_s_width_comes_from_earlier_rounds():
    """The widths of a round are the percentiles of the tests before it; the first rounds have none."""
    tests = law_fit.later(law.committed()["kernel"], ["v0.7", "v1.0", "v1.1"])
    before = [test for test in tests if test.row.round < "v1.1"]
    for test in tests:
        expected = law_fit.widths_of(before) if test.row.round == "v1.1" else test.widths
        assert test.widths == expected and bool(test.widths) == (test.row.round > "v0.7")


def test_the_errors_grow_with_the_distance_and_the_answer_has_its_own():
    near = errors.table()["distance"]
    halves = [near[name]["law"][0] for name in (errors.SAME, errors.TWICE, errors.FOUR, errors.FARTHER)]
    assert halves == sorted(halves)
    rows = scores.rows()
    assert errors.error_of("llama31_405b", "B200", 64, rows)[1] != near[errors.SAME]["law"]
    assert errors.distance("llama31_8b", "L4", 8, rows) == errors.NEW
    assert errors.error_of("resnet", "RTX 9999X", 1, [])[1] == errors.table()["left out"]["family"]["law"]


def test_a_look_up_against_its_naive_form():
    rows = [
        scores.Score("v4.0", org, "s", "bert", "L4", n, t)
        for org, n, t in (("a", 8, 10.0), ("b", 8, 30.0), ("a", 8, 12.0), ("a", 16, 6.0))
    ]
    row = scores.Score("v4.1", "b", "t", "bert", "L4", 8, 24.0)
    errors_of = law_fit.look_up(row, rows)
    assert errors_of["same count"] == errors_of["simple rule"] == pytest.approx(math.log(24 / 12))
    assert errors_of["same submitter"] == pytest.approx(math.log(24 / 30))
    errors_of = law_fit.look_up(dataclasses.replace(row, accelerators=32), rows)
    assert errors_of["nearest count"] == pytest.approx(math.log(24 / 3)) and "same count" not in errors_of
    assert errors_of["simple rule"] == pytest.approx(math.log(24 / (6 * 0.5**0.8)))
    other = law_fit.look_up(dataclasses.replace(row, chip="A30"), rows)
    faster = law.speed_of(accelerators.table()["A30"]) - law.speed_of(accelerators.table()["L4"])
    assert other == {"simple rule": pytest.approx(math.log(24 / 10) + faster)}
    assert law_fit.look_up(row, []) == {}


@pytest.mark.parametrize(
    "benchmark, chip", [("retinanet", "B200"), ("llama2_70b_lora", "H100-SXM5"), ("ssd", "A30")]
)
def test_more_accelerators_neither_take_longer_nor_speed_up_beyond_their_number(benchmark, chip):
    entry = accelerators.table()[chip] | {"name": chip}
    estimates = law.estimates(benchmark, entry, [1 << i for i in range(14)])
    for one, other in zip(estimates, estimates[1:]):
        assert other.minutes <= one.minutes * 1.0001 <= 2.16 * other.minutes


def test_outliers_do_not_bend_the_examples():
    b200 = accelerators.table()["B200"] | {"name": "B200"}
    two, four = law.estimates("retinanet", b200, [16, 32])
    assert two.minutes > four.minutes and four.minutes < 10
    (lora,) = law.estimates("llama2_70b_lora", H100, [32])
    assert 6.5 < lora.minutes < 9.5
    a100 = accelerators.table()["A100-SXM4-40GB"] | {"name": "A100-SXM4-40GB"}
    (resnet,) = law.estimates("resnet", a100, [8])
    assert resnet.minutes < 36 and resnet.low < 30.4 and "8 A100-SXM4-40GB" in resnet.evidence


@pytest.mark.parametrize(
    "benchmark, many, reason", [("gpt3", 8, "accelerators, not 8"), ("resnet", 100_000, "not 100000")]
)
def test_the_law_says_when_it_cannot_say(benchmark, many, reason):
    assert reason in law.estimates(benchmark, H100, [many])[0].reason


def test_a_processor_has_no_forecast():
    for name in ("Xeon with AMX", "EPYC 9004"):
        (estimate,) = law.estimates("resnet", accelerators.table()[name] | {"name": name}, [8])
        assert "processors without accelerators" in estimate.reason


def test_memory_decides():
    l4 = accelerators.table()["L4"] | {"name": "L4"}
    assert not memory.fit("llama2_70b_lora", l4, 1).fits and not memory.fit("dlrm_dcnv2", l4, 2).fits
    lora = memory.fit("llama2_70b_lora", accelerators.table()["A10"] | {"name": "A10"}, 16)
    assert "570 GB on 8 GH200" in lora.why and "WARNING" in lora.why
    batch = memory.fit("resnet", H100, 1, 100_000)
    assert (
        not batch.fits and "a batch of at most 1,8" in batch.why and memory.fit("resnet", H100, 1, 1000).fits
    )
    assert memory.fit("minigo", l4, 1) is None and memory.fit("bert", {"name": "x"}, 1) is None


@pytest.mark.parametrize("many, batch", [(8, 16), (8, 96), (2, 32), (64, 64), (64, 32)])
def test_a_division_divides_the_batch_and_fits(many, batch):
    one = memory.divide("llama31_8b", H100, many, 8, batch)
    assert one.data * one.tensor * one.pipeline * one.context == many
    assert one.data * one.micro * one.accumulation == batch and one.bytes_each < H100["memory"]
    assert memory.divide("llama31_405b", H100, many, 8, 1152) is None


def test_prices_are_ranges_over_offers_that_can_be_booked():
    for name, price in money.prices().items():
        assert name in accelerators.table()
        assert all(one.seller and one.date and one.source and one.kind for one in price.offers), name
        assert list(price.offers) == sorted(price.offers, key=lambda one: one.usd)
    h100 = money.prices()["H100-SXM5"]
    first, last = h100.offers[0].usd, h100.offers[-1].usd
    assert first < 3 < 10 < last
    assert h100.for_count(1024) is None and h100.for_count(256).offers[0].usd > first
    assert money.prices()["GH200"].for_count(2) is None and money.prices()["GH200"].for_count(1)
    assert h100.dollars(8, 60.0) == pytest.approx((8 * first, 8 * last))
    assert "older than a year" in money.Offer("x", 1.0, date="2020-01").words
    assert "older" not in money.Offer("x", 1.0, date="2999-01", kind="spot").words


def test_an_offer_of_hosts_bills_whole_hosts():
    host, single = money.Offer("host", 2.0, of=8, most=16), money.Offer("single", 3.0, most=4)
    alone, both = money.Price((host,)), money.Price((host, single))
    assert alone.for_count(1).dollars(1, 60.0) == (16.0, 16.0)
    assert alone.for_count(12).dollars(12, 60.0) == (32.0, 32.0)
    assert "billed for 8" in alone.for_count(1).words(1) and "billed" not in alone.for_count(8).words(8)
    # An offer of exactly so many leaves out those that bill more.
    assert (
        both.for_count(1).offers == (single,)
        and both.for_count(8).offers == (host,)
        and both.for_count(12).offers == (host,)
    )
    assert both.for_count(17) is None


def test_clouds_machines_have_a_known_accelerator_and_a_source():
    for name, (many, chip, source) in machine._instances().items():
        assert (
            many in (1, 2, 4, 8, 16) and chip in accelerators.table() and "/" in source or "doc" in source
        ), name
    assert machine.load("ND A100 v4")["accelerator_model_name"] == "A100-SXM4-40GB"
    assert machine.load("NDm A100 v4")["accelerator_model_name"] == "A100-SXM4-80GB"


def test_figures_of_data_have_a_source_of_their_own():
    for name, row in memory.facts().items():
        data = row.get("data", {"source": "none"})
        assert data["source"] and ("source" in row or not {"parameters", "tables"} & {*row}), name
        # A size without its basis in the source says what it is estimated from.
        assert (
            not data.get("fetch") or "size" in data["source"] or "TB" in data["source"] or data["estimated"]
        ), name


def test_a_table_of_prices_replaces_ours(tmp_path):
    table = tmp_path / "prices.json"
    table.write_text('{"date": "2030-01", "prices": {"NVIDIA H100 80GB HBM3": [1.5, "mine"], "L4": 1}}')
    assert money.price("H100-SXM5", None, table).offers == (money.Offer("mine", 1.5, 1, "2030-01"),)
    assert money.price("B200", None, table) is None and money.price("L4", None, table).offers[0].usd == 1


def test_energy_of_published_power_results_without_their_submitter():
    """Each is predicted from the other submitters' ratio of watts to boards' limits."""
    assert len(money.powers()) >= 28
    for one in money.powers():
        chip = accelerators.table()[one.chip] | {"name": one.chip}
        energy = money.energy(chip, one.accelerators, one.minutes, (one.minutes,) * 2, money.maker(one.org))
        assert abs(math.log(energy.kwh / one.kwh)) < math.log(1.35), one
    assert money.energy(accelerators.table()["TPU v6e"], 8, 10.0, (9.0, 11.0)) is None
