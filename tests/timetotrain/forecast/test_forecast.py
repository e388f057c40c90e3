"""Tests timetotrain forecast: answers, refusals, and one line for bad input."""

import json
import subprocess
import sys

import pytest

import systems
from systems.forecast import law, scores
from timetotrain.cli import main


def answer_of(capsys, *words, status=0):
    assert main(["forecast", *words, "--json"]) == status
    return json.loads(capsys.readouterr().out)


def test_an_answer_says_minutes_error_code_memory_money_and_energy(capsys):
    assert main(["forecast", "llama2_70b_lora", "--system=8xH200-SXM"]) == 0
    out = capsys.readouterr().out
    for word in ("nine of ten scores between", "true error, later scores on as many",
                 "published: ", "whose code: tuned submissions",
                 "ordinary code:", "memory: 70 billion parameters", " USD a run", "energy:"):  # fmt: skip
        assert word in out, word


def test_an_answer_holds_the_published_scores(capsys):
    actual = answer_of(capsys, "llama31_8b", "--system=b200-8")
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
        ("dlrm_dcnv2", "2xL4", "tables of 52.3 GB"),
    ],
)
def test_what_cannot_be_said_has_neither_money_nor_energy(benchmark, system, reason, capsys):
    answer = answer_of(capsys, benchmark, f"--system={system}", "--price=2", status=1)
    assert reason in answer["reason"] and not {"minutes", "cost", "energy_kwh"} & {*answer}
    assert main(["forecast", benchmark, f"--system={system}"]) == 1
    out = capsys.readouterr().out
    assert "cannot say: " in out and "USD" not in out and "kWh" not in out


def test_money_is_accelerators_times_hours_times_price(capsys):
    answer = answer_of(capsys, "resnet", "--system=h100-8", "--price=2", "--runs=3")
    one = answer["minutes"] / 60 * 8 * 2
    cost = answer["cost"]
    assert [cost[name][0] for name in ("run", "submission")] == pytest.approx([one, 3 * one])
    ends = answer_of(capsys, "resnet", "--system=h100-8")["cost"]["run"]
    assert ends[0] < ends[1]


def test_sizes_within_a_deadline_and_a_budget(capsys):
    words = ("bert", "--system=h100-8", "--deadline=3", "--budget=40", "--by=time")
    sizes = answer_of(capsys, *words)
    assert sizes and all(row["minutes"] <= 3 and row["usd"][0] <= 40 for row in sizes)
    assert all(row["machine"].endswith("xH100-SXM5") for row in sizes)
    assert sizes == sorted(sizes, key=lambda row: row["minutes"])


def test_a_score_of_widely_spread_runs_and_the_network_say_so(capsys):
    assert main(["forecast", "unet3d", "--system=72xH100-SXM5"]) == 0
    out = capsys.readouterr().out
    assert "the mean of 40 runs" in out and "network: " in out
    assert main(["forecast", "bert", "--system=8xH100-SXM5"]) == 0
    out = capsys.readouterr().out
    assert "single runs" not in out and "network: " not in out


def test_a_board_named_in_full_is_the_bare_one(tmp_path, capsys):
    minutes = []
    for name in ("NVIDIA GeForce RTX 5090", "RTX 5090"):
        path = tmp_path / "board.json"
        fields = {"accelerator_model_name": name, "number_of_nodes": "1", "accelerators_per_node": "1"}
        path.write_text(json.dumps(fields))
        minutes.append(
            answer_of(capsys, "resnet", f"--system={path}", "--peak=209.5", "--bandwidth=1792")["minutes"]
        )
    counted = answer_of(capsys, "resnet", "--system=1xRTX5090", "--peak=209.5", "--bandwidth=1792")["minutes"]
    assert minutes[0] == pytest.approx(minutes[1]) == pytest.approx(counted)


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
        (["resnet", "--system=h100-8", "--accelerators=0"], "--accelerators=0: must be 1 to"),
        (["resnet", "--system=h100-8", "--price=-1"], "--price=-1: must be a positive number"),
        (["resnet", "--system=cpu-cluster-1024"], "accelerators_per_node is 0; a forecast needs"),
        (["resnet"], "--system=NAME: which machine?"),
    ],
)
def test_bad_input_is_one_line_and_status_2(arguments, words, capsys):
    assert main(["forecast", *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1


@pytest.mark.parametrize("field", ["number_of_nodes", "accelerators_per_node", "accelerator_model_name"])
def test_a_missing_field_is_named(field, tmp_path, capsys):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(systems.load("summit-8") | {field: ""}))
    assert main(["forecast", "resnet", f"--system={path}"]) == 2
    error = capsys.readouterr().err
    assert field in error and error.count("\n") == 1


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


def test_rent_lists_machines_within_limits_by_cost_time_or_energy(capsys):
    words = ["forecast", "llama2_70b_lora", "--rent", "--within=30min", "--budget=80", "--most=64"]
    orders = {}
    for by in ("cost", "time", "energy"):
        assert main([*words, f"--by={by}", "--json"]) == 0
        orders[by] = json.loads(capsys.readouterr().out)
    for rows in orders.values():
        assert rows and all(row["minutes"] <= 30 and row["usd"][0] <= 80 and row["evidence"] for row in rows)
    assert orders["time"][0]["minutes"] == min(row["minutes"] for row in orders["time"])
    assert orders["cost"][0]["usd"][0] == min(row["usd"][0] for row in orders["cost"])
    assert main(words) == 0
    assert "true error" in capsys.readouterr().out


def test_an_offer_of_one_card_is_no_cluster(capsys):
    assert main(["forecast", "llama2_70b_lora", "--rent", "--rows=500", "--json"]) == 0
    rows = [row for row in json.loads(capsys.readouterr().out) if row["machine"].endswith("xGH200")]
    assert rows and all(row["usd"] is None for row in rows)


def test_verbs_of_earlier_versions_name_the_new_ones(capsys):
    for verb, text in (("rent", "forecast BENCHMARK --rent"), ("why", "compare LOG LOG")):
        assert main([verb, "x"]) == 2
        assert text in capsys.readouterr().err


def test_rent_refuses_what_it_cannot_read(capsys):
    for words, text in ((["nonsense"], "no scores"), (["bert", "--within=soon"], "=soon: write a time")):
        assert main(["forecast", "--rent", *words]) == 2
        error = capsys.readouterr().err
        assert text in error and error.count("\n") == 1


def test_every_answer_stands_on_named_submitters():
    (estimate,) = law.estimates("bert", systems_chip("H100-SXM5"), [8])
    assert "of " in estimate.evidence and "and " in estimate.evidence and "v" in estimate.evidence


def systems_chip(name):
    from systems.forecast import accelerators

    return accelerators.table()[name] | {"name": name}
