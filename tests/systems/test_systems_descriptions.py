"""Tests the committed descriptions: complete, true to their names, and alike within a family."""

import json

import pytest

import systems
from common.errors import UserError
from systems.schema import NAMES, validate

ASKED_FOR = [
    *(f"tpu-v3-{cores}" for cores in (32, 128, 256, 512, 1024, 2048, 8192)),
    *(f"tpu-v4-{cores}" for cores in (16, 128, 512)),
    *(f"tpu-{kind}-{chips}" for kind in ("v5e", "v6e") for chips in (16, 256)),
    *(
        "h100-1", "h100-8", "h200-1", "h200-8", "b200-8", "v100-8", "dgx-1", "dgx-2h", "cpu-cluster-1024",
        "demo", "local",
    ),
    *(f"dgx-2h-{nodes}" for nodes in (4, 10, 16, 32, 60, 64)),
    *(f"summit-{nodes}" for nodes in (1, 2, 4, 8, 16, 32, 64, 128, 256, 384, 512, 1024)),
]  # fmt: skip


def test_every_system_that_presets_name_is_there():
    assert set(ASKED_FOR) == set(systems.names())


@pytest.mark.parametrize("name", ASKED_FOR)
def test_a_description_holds_the_33_fields_in_order_and_no_problem(name):
    description = systems.load(name)
    assert tuple(description) == NAMES
    assert validate(description, "0.7.0", submission=False) == []


@pytest.mark.parametrize("name", ASKED_FOR)
def test_the_stock_checker_accepts_it(name, tmp_path):
    from mlperf_logging.system_desc_checker.system_desc_checker import check_system_desc

    path = tmp_path / f"{name}.json"
    path.write_text(json.dumps(systems.load(name)))
    for ruleset in ("0.6.0", "0.7.0", "1.0.0"):
        assert check_system_desc(str(path), "training", ruleset)[0]


@pytest.mark.parametrize("name", ASKED_FOR)
def test_the_size_in_the_name_is_the_size_in_the_file(name):
    family, _, number = name.rpartition("-")
    nodes, accelerators = systems.size(systems.load(name))
    if family in ("tpu-v5e", "tpu-v6e"):
        assert accelerators == int(number)  # one core to a chip
    elif family.startswith("tpu"):
        assert accelerators == int(number) // 2  # the name counts cores, two to a chip
    elif family == "summit":
        assert (nodes, accelerators) == (int(number), 6 * int(number))  # tsm_kinetics, section 4.1
    elif family == "dgx-2h":
        assert (nodes, accelerators) == (int(number), 16 * int(number))
    elif name in ("h100-1", "h200-1"):
        assert (nodes, accelerators) == (1, 1)
    elif name in ("v100-8", "h100-8", "h200-8", "b200-8", "dgx-1", "dgx-2h"):
        assert (nodes, accelerators) == (1, 16 if name == "dgx-2h" else 8)


@pytest.mark.parametrize("family", ["tpu-v3", "summit", "dgx-2h"])
def test_a_family_differs_only_in_size(family):
    size = {"system_name", "number_of_nodes", "hw_notes", "accelerator_interconnect_topology"}
    members = [systems.load(name) for name in ASKED_FOR if name.startswith(family) and name != "tpu-v3-8192"]
    assert len({json.dumps({k: v for k, v in member.items() if k not in size}) for member in members}) == 1


def test_an_unknown_name_is_answered_with_near_ones():
    with pytest.raises(UserError, match="tpu-v3-32"):
        systems.load("tpuv3-32")
    with pytest.raises(UserError, match="No system is named"):
        systems.load("../secrets")


def test_size_of_an_unstated_count_is_none():
    assert systems.size(systems.load("cpu-cluster-1024")) == (None, None)
    assert systems.size({"number_of_nodes": 2, "accelerators_per_node": "²"}) == (None, None)
    assert systems.size({"number_of_nodes": "9" * 5000, "accelerators_per_node": "8"}) == (None, None)
