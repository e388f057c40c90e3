"""Tests timetotrain forecast and rent: answers, refusals, and one line for bad input."""

import json
import subprocess
import sys

import pytest

import systems
from systems.forecast import law, scores
from timetotrain.cli import main


def told(capsys, *words):
    assert main(["forecast", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_an_answer_says_minutes_error_code_memory_money_and_energy(capsys):
    assert main(["forecast", "llama2_70b_lora", "--system=8xH200-SXM"]) == 0
    out = capsys.readouterr().out
    for word in ("nine of ten runs between", "true error, scores of later rounds", "whose code: tuned submissions",
                 "ordinary code:", "memory: 70 billion parameters", " USD a run", "energy:"):  # fmt: skip
        assert word in out, word


def test_an_answer_holds_the_published_scores(capsys):
    actual = told(capsys, "llama31_8b", "--system=b200-8")
    low, high = actual["interval_minutes"]
    same = [
        r.minutes for r in scores.rows() if (r.benchmark, r.chip, r.accelerators) == ("llama31_8b", "B200", 8)
    ]
    assert sum(low <= minutes <= high for minutes in same) >= 0.8 * len(same) > 3
    assert low < actual["minutes"] < high and "B200" in actual["evidence"]


@pytest.mark.parametrize(
    "benchmark, system, reason",
    [
        ("llama2_70b_lora", "1xL4", "does not fit"),
        ("minigo", "90000xH100-SXM5", "accelerators, not 90000"),
        ("mnist", "v100-8", "no scores of mnist are published"),
        ("gpt_oss_20b", "64xMI355X", "interval spans"),
    ],
)
def test_what_cannot_be_said_has_neither_money_nor_energy(benchmark, system, reason, capsys):
    found = told(capsys, benchmark, f"--system={system}", "--price=2")
    assert reason in found["reason"] and not {"minutes", "cost", "energy_kwh"} & {*found}
    assert main(["forecast", benchmark, f"--system={system}"]) == 0
    out = capsys.readouterr().out
    assert "cannot say: " in out and "USD" not in out and "kWh" not in out


def test_money_is_accelerators_times_hours_times_price(capsys):
    found = told(capsys, "resnet", "--system=h100-8", "--price=2", "--runs=3", "--trials=10")
    one = found["minutes"] / 60 * 8 * 2
    cost = found["cost"]
    assert [cost[name][0] for name in ("run", "submission", "search")] == pytest.approx(
        [one, 3 * one, 10 * one]
    )
    ends = told(capsys, "resnet", "--system=h100-8")["cost"]["run"]
    assert ends[0] < ends[1]


def test_a_batch_that_divides_is_chosen(capsys):
    usual = told(capsys, "resnet", "--system=16xA100-SXM4-80GB")
    found = told(capsys, "resnet", "--system=16xA100-SXM4-80GB", "--batch=65537")
    assert any("65536" in note for note in found["assumptions"])
    assert found["epochs"] > usual["epochs"] and found["minutes"] > usual["minutes"]
    half = told(capsys, "resnet", "--system=16xA100-SXM4-80GB", f"--epochs={usual['epochs'] / 2}")
    assert half["minutes"] == pytest.approx(usual["minutes"] / 2)


def test_a_compiled_step_s_shares_are_printed_as_shares(capsys):
    assert main(["forecast", "resnet", "--system=tpu-v3-2048"]) == 0
    out = capsys.readouterr().out
    assert "a step, by the compiler: " in out and " ms" not in out


def test_a_forecast_is_explained_by_factors(capsys):
    actual = told(capsys, "resnet", "--system=h100-8", "--explain=b200-8")
    factors = actual["explanation"]["factors"]
    product = 1.0
    for factor in factors.values():
        product *= factor
    assert product == pytest.approx(actual["explanation"]["other"]["minutes"] / actual["minutes"])
    itself = told(capsys, "resnet", "--system=h100-8", "--epochs=20", "--explain=h100-8")["explanation"][
        "factors"
    ]
    assert itself["--batch and --epochs"] > 1.3 and itself["peak and bandwidth"] == pytest.approx(1)


def test_sizes_a_deadline_a_budget_and_a_picture(tmp_path, capsys):
    words = ("bert", "--system=h100-8", "--deadline=3", "--budget=10", f"--plot={tmp_path}/sizes.png")
    assert main(["forecast", *words]) == 0
    out = capsys.readouterr().out
    assert "cheapest within 3 minutes:" in out and "fastest for 10 USD:" in out
    assert (tmp_path / "sizes.png").stat().st_size > 5_000
    assert main(["forecast", "bert", "--system=h100-8", f"--plot={tmp_path}/none/x.png"]) == 2
    assert "cannot write" in capsys.readouterr().err


def test_faults_are_simulated(capsys):
    found = told(capsys, "resnet", "--system=tpu-v3-256", "--jitter=0.02", "--mtbf=100", "--save=1")
    assert found["simulation"]["total"] > 60 * found["minutes"] and found["simulation"]["young"] > 0


def test_neither_tensorflow_nor_matplotlib_is_imported():
    code = (
        "import sys; from timetotrain.cli import main; main(['forecast', 'ssd', '--system=tpu-v3-2048']); "
        "sys.exit(any(m in sys.modules for m in ('tensorflow', 'tf_keras', 'matplotlib', 'jax', 'scipy')))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["nonsense", "--system=tpu-v3-32"], "nonsense: no scores are published"),
        (["resnet", "--system=tpu-v3-33x"], "did you mean"),
        (["resnet", "--system=/no/such.json"], "cannot read"),
        (["resnet", "--system=h100-8", "--batch=0"], "--batch=0: must be a positive number"),
        (["bert", "--system=h100-8", "--batch=8"], "no epochs of bert are published by batch"),
        (["resnet", "--system=h100-8", "--accelerators=0"], "--accelerators=0: must be 1 to"),
        (["resnet", "--system=h100-8", "--epochs=nan"], "--epochs=nan"),
        (["resnet", "--system=h100-8", "--simulate", "--seed=-1"], "--seed=-1: must not be negative"),
        (["resnet", "--system=h100-8", "--jitter=-1"], "--jitter=-1"),
        (["resnet", "--system=h100-8", "--stragglers=2"], "at most 1"),
        (["resnet", "--system=h100-8", "--group=3"], "does not divide"),
        (["resnet", "--system=h100-8", "--mtbf=0.0001"], "failures"),
        (["resnet", "--system=h100-8", "--price=-1"], "--price=-1: must be a positive number"),
        (["resnet", "--system=cpu-cluster-1024"], "accelerators_per_node is 0; a forecast needs"),
        (["resnet", "--system=h100-8", "--explain=nowhere"], "--explain=nowhere: "),
    ],
)
def test_bad_input_is_one_line_and_status_2(arguments, words, capsys):
    assert main(["forecast", *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1


@pytest.mark.parametrize("field", ["number_of_nodes", "accelerators_per_node", "accelerator_model_name"])
def test_a_missing_field_is_named_with_its_default(field, tmp_path, capsys):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(systems.load("summit-8") | {field: ""}))
    assert main(["forecast", "resnet", f"--system={path}"]) == 2
    error = capsys.readouterr().err
    assert field in error and "--assume" in error
    assert main(["forecast", "resnet", f"--system={path}", "--assume"]) == 0
    assert f"assumed: summit-8: {field}" in capsys.readouterr().out


@pytest.mark.parametrize("content", ["", "[]", "{", "[" * 100_000, '{"accelerator_model_name": 3}'])
def test_a_broken_description_is_one_line(content, tmp_path, capsys):
    path = tmp_path / "mine.json"
    path.write_text(content)
    assert main(["forecast", "resnet", f"--system={path}"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    "content", ["", "[" * 100_000, "[]", '{"prices": {"H100": -1}}', '{"prices": {"H100": "dear"}}']
)
def test_a_broken_table_of_prices_is_one_line(content, tmp_path, capsys):
    path = tmp_path / "prices.json"
    path.write_text(content)
    assert main(["forecast", "resnet", "--system=h100-8", f"--prices={path}"]) == 2
    error = capsys.readouterr().err
    assert "--prices=" in error and error.count("\n") == 1


def test_rent_lists_machines_within_limits_by_cost_time_or_energy(capsys, tmp_path):
    words = ["rent", "llama2_70b_lora", "--within=30min", "--budget=50", "--most=64"]
    orders = {}
    for by in ("cost", "time", "energy"):
        assert main([*words, f"--by={by}", "--json"]) == 0
        orders[by] = json.loads(capsys.readouterr().out)
    for rows in orders.values():
        assert rows and all(row["minutes"] <= 30 and row["usd"][0] <= 50 and row["evidence"] for row in rows)
    assert orders["time"][0]["minutes"] == min(row["minutes"] for row in orders["time"])
    assert orders["cost"][0]["usd"][0] == min(row["usd"][0] for row in orders["cost"])
    page = tmp_path / "rent.html"
    assert main([*words, "-o", str(page)]) == 0
    out = capsys.readouterr().out
    assert "true error, later rounds" in out and "<table>" in page.read_text()


def test_rent_refuses_what_it_cannot_read(capsys):
    for words, text in ((["nonsense"], "no scores"), (["bert", "--within=soon"], "--within=soon")):
        assert main(["rent", *words]) == 2
        error = capsys.readouterr().err
        assert text in error and error.count("\n") == 1


def test_every_answer_stands_on_named_submitters():
    (found,) = law.estimates("bert", systems_chip("H100-SXM5"), [8])
    assert "of " in found.evidence and "and " in found.evidence and "v" in found.evidence


def systems_chip(name):
    from systems.forecast import accelerators

    return accelerators.table()[name] | {"name": name}
