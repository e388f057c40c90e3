"""Tests the law of published scores: names of accelerators, the fit, the errors of what is left out, money, memory."""

import csv
import dataclasses
import json
import math

import numpy as np
import pytest

import systems
from common.errors import UserError
from systems.forecast import (
    accelerators,
    convergence,
    document,
    law,
    law_fit,
    machine,
    memory,
    money,
    own,
    scores,
    shares,
    simulate,
)
from systems.forecast.accelerators import Given

H100 = accelerators.table()["H100-SXM5"] | {"name": "H100-SXM5"}
# Names as v6.0's descriptions, cloud providers and nvidia-smi write them.
NAMES = {
    "NVIDIA H100 80GB HBM3": "H100-SXM5", "NVIDIA H100-PCIe-80GB": "H100-PCIe",
    "H100 NVL Tensor Core GPU (PCIe)": "H100-NVL", "NVIDIA H200 NVL 141GB": "H200-NVL",
    "NVIDIA Blackwell GPU (B200-SXM-180GB)": "B200", "NVIDIA Blackwell Ultra GPU (GB300)": "GB300",
    "NVIDIA A100 - PCIe - 80 GB": "A100-PCIe-80GB", "A100-SXM4-40GB": "A100-SXM4-40GB", "NVIDIA A10": "A10",
    "NVIDIA A10G": "A10G", "AMD Instinct MI325X 256GB HBM3e": "MI325X",
    "Intel(R) Gaudi(R) 2 AI Accelerator": "Gaudi 2", "Intel Gaudi3": "Gaudi 3", "TPU-trillium": "TPU v6e",
    "TPU7x (Ironwood)": "TPU 7x", "NVIDIA L40S": "L40S", "NVIDIA L40": "L40", "GeForce GTX 1080": "",
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
            assert accelerators.named(name) == name and entry["peak"]["bf16"] > 0, name
            assert entry["memory"] or "memory" not in entry["source"].split(".")[0], name


@pytest.mark.parametrize("model", NAMES)
def test_names_as_people_write_them_are_recognised(model):
    assert accelerators.named(model) == NAMES[model]


def test_every_table_of_scores_is_read():
    """A round's file that lies unread fails: all rows of all files with a known accelerator are scores."""
    read = {(row.round, row.org, row.system) for row in scores.rows()}
    for path in scores.files():
        with path.open(encoding="utf-8") as lines:
            rows = list(csv.DictReader(lines))
        assert {row["round"] for row in rows} <= set(scores.ROUNDS), path
        found = [row for row in rows if (row["round"], row["org"], row["system"]) in read]
        assert len(found) >= 0.97 * len(rows), path
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
    ],
)
def test_a_machine_is_named_without_a_file(name, many, chip):
    notes = []
    found = machine.machine(machine.load(name), None, notes)
    assert (found.accelerators, found.chip["name"]) == (many, chip)
    assert any("A100-SXM4-80GB" in note for note in notes) == (name == "a100-8")


def test_an_unknown_accelerator_needs_its_figures_and_takes_them():
    unknown = systems.load("h100-8") | {"accelerator_model_name": "Own Chip 1"}
    with pytest.raises(UserError, match="give --peak=TFLOPS of the accelerator"):
        machine.machine(unknown, None, [], given=Given(bandwidth=100.0))
    given = machine.machine(unknown, None, [], given=Given(500.0, 2000.0))
    assert given.chip["peak"]["bf16"] == 500e12 and given.chip["memory_bandwidth"] == 2000e9


def test_a_left_out_group_equals_a_fit_without_it(few):
    """The closed form against its naive form: the law of the other rows with the same weights."""
    tests = {(t.row.key, t.row.benchmark): t for t in law_fit.left_out(few, "system")}
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
    left = law.kernel(one.at, one.at, one.numbers) @ one.pull + noise * one.pull
    assert left == pytest.approx(law.goal(one.rows, one.at) - one.mean, abs=0.01), (
        "python -m systems.forecast fit"
    )


def test_the_error_of_a_round_is_what_the_page_says():
    """v1.1 from earlier rounds: its law is better than the look-up of the nearest count at the 90th percentile."""
    found = law_fit.summary(law_fit.later(law.committed()["kernel"], ["v1.1"]), law.committed()["width"])
    assert found["scores"] == 164 and found["inside"] >= 0.8
    assert found["scaled"]["law"][1] < found["scaled"]["look-up"][1]


@pytest.mark.parametrize("group", ["system", "accelerator"])
def test_the_errors_of_groups_are_what_the_code_gives(group):
    kept = json.loads(law_fit.ERRORS.read_text())[group]
    found = law_fit.summary(law_fit.left_out(law.law(), group), law.committed()["width"])
    assert found["law"] == pytest.approx(kept["law"], rel=0.02)
    assert found["median"]["look-up"] == pytest.approx(kept["median"]["look-up"], rel=0.02)


@pytest.mark.e2e
def test_the_committed_errors_are_what_the_code_gives():
    content, errors = law_fit.refit(law.committed()["kernel"])
    kept = json.loads(law_fit.ERRORS.read_text())
    assert content["width"] == pytest.approx(law.committed()["width"], rel=0.01)
    for name, row in errors.items():
        assert row["law"] == pytest.approx(kept[name]["law"], rel=0.02), name


def test_the_law_beats_both_look_ups_at_the_90th_percentile():
    errors = json.loads(law_fit.ERRORS.read_text())
    for name in (law_fit.LATER, *law_fit.GROUPS):
        assert 0.85 <= errors[name]["inside"] <= 0.97, name
        for look_up in ("median", "scaled"):
            if errors[name][look_up]["scores"] > 100:
                assert errors[name][look_up]["law"][1] < errors[name][look_up]["look-up"][1], (name, look_up)
    assert errors["system"]["law"][0] <= 4.0 and errors["system"]["law"][1] <= 19.0


def test_a_look_up_against_its_naive_form():
    rows = [
        scores.Score("v4.0", "a", "s", "bert", "L4", n, t)
        for n, t in ((8, 10.0), (8, 30.0), (8, 12.0), (16, 6.0))
    ]
    expected = scores.Score("v4.1", "b", "t", "bert", "L4", 8, 24.0)
    middle, _ = law_fit.look_up(expected, rows)
    assert middle == pytest.approx(math.log(24 / 12))
    _, scaled = law_fit.look_up(dataclasses.replace(expected, accelerators=32), rows)
    assert scaled == pytest.approx(math.log(24 / 3)) and law_fit.look_up(expected, []) == (None, None)


@pytest.mark.parametrize(
    "benchmark, chip", [("retinanet", "B200"), ("llama2_70b_lora", "H100-SXM5"), ("ssd", "A30")]
)
def test_more_accelerators_neither_take_longer_nor_speed_up_beyond_their_number(benchmark, chip):
    entry = accelerators.table()[chip] | {"name": chip}
    found = law.estimates(benchmark, entry, [1 << i for i in range(14)])
    for one, other in zip(found, found[1:]):
        assert other.minutes <= one.minutes * 1.0001 <= 2.16 * other.minutes


def test_outliers_do_not_bend_the_examples():
    b200 = accelerators.table()["B200"] | {"name": "B200"}
    two, four = law.estimates("retinanet", b200, [16, 32])
    assert two.minutes > four.minutes and four.minutes < 10
    (lora,) = law.estimates("llama2_70b_lora", H100, [32])
    assert 7.0 < lora.minutes < 9.5
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
        (found,) = law.estimates("resnet", accelerators.table()[name] | {"name": name}, [8])
        assert "processors without accelerators" in found.reason


def test_memory_decides():
    l4 = accelerators.table()["L4"] | {"name": "L4"}
    assert not memory.fit("llama2_70b_lora", l4, 1).fits and memory.fit("llama2_70b_lora", l4, 8).fits
    assert memory.fit("resnet", l4, 1) is None and memory.fit("bert", {"name": "x"}, 1) is None


def test_prices_are_ranges_over_sellers_with_dates():
    for name, price in money.prices().items():
        assert name in accelerators.table()
        assert all(one.seller and one.date and one.source for one in price.offers), name
        assert list(price.offers) == sorted(price.offers, key=lambda one: one.usd)
    h100 = money.prices()["H100-SXM5"]
    assert h100.ends[0] < 3 < 10 < h100.ends[1]
    a100 = money.prices()["A100-SXM4-80GB"]
    assert a100.of(1).ends[1] < a100.of(8).ends[1]
    assert h100.dollars(8, 60.0) == pytest.approx((8 * h100.ends[0], 8 * h100.ends[1]))


def test_a_table_of_prices_replaces_ours(tmp_path):
    table = tmp_path / "prices.json"
    table.write_text('{"date": "2030-01", "prices": {"NVIDIA H100 80GB HBM3": [1.5, "mine"], "L4": 1}}')
    assert money.price("H100-SXM5", None, table).offers == (money.Offer("mine", 1.5, 1, "2030-01"),)
    assert money.price("B200", None, table) is None and money.price("L4", None, table).ends == (1, 1)


def test_energy_of_published_power_results_without_their_submitter():
    """Each is predicted from the other submitters' ratio of watts to boards' limits."""
    assert len(money.powers()) >= 28
    for one in money.powers():
        chip = accelerators.table()[one.chip] | {"name": one.chip}
        found = money.energy(chip, one.accelerators, one.minutes, (one.minutes,) * 2, money.maker(one.org))
        assert abs(math.log(found.kwh / one.kwh)) < math.log(1.35), one
    assert money.energy(accelerators.table()["TPU v6e"], 8, 10.0, (9.0, 11.0)) is None


def test_shares_of_a_compiled_step_add_up():
    found = shares.of_preset("resnet", "tpu-v3-2048")
    assert sum(found.values()) == pytest.approx(1) and 0 < found[shares.EXCHANGE] < 0.5
    assert shares.of_preset("resnet", "h100-8") is None


def test_own_steps_are_those_measured():
    rate = own.rates()["resnet"]
    assert own.minutes("resnet", "H200-SXM", 2, 1e6) == pytest.approx(1e6 / rate / 2 / 60)
    assert own.minutes("resnet", "B200", 2, 1e6) is None


def test_epochs_grow_with_the_batch():
    curve = convergence.curve("resnet")
    assert curve.epochs(65536) > curve.epochs(4096) > 30
    assert convergence.usual_batch("resnet", 16) < convergence.usual_batch("resnet", 2048)


def test_without_faults_a_simulation_takes_the_run_s_time():
    assert simulate.simulate(600.0, 1000, 64, simulate.Faults()).total == pytest.approx(600)
    slow = simulate.simulate(600.0, 1000, 64, simulate.Faults(jitter=0.05, stragglers=0.1, mtbf=1.0), seed=1)
    assert slow.total > 700 and slow.failures > 0 and slow.young > 0
    near = simulate.simulate(600.0, 1000, 64, simulate.Faults(jitter=0.05, group=4))
    assert near.total > simulate.simulate(600.0, 1000, 64, simulate.Faults(jitter=0.05)).total > 600


def test_the_tables_of_the_page():
    for head, rows in (document.errors(), document.chips(), document.offers()):
        assert rows and all(len(row) == len(head) for row in rows)
