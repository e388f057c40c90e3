"""Tests the committed descriptions (complete, true to their names, alike within a family), and their validation."""

import json

import pytest

import systems
from common.errors import UserError
from systems.schema import FIELDS, IN_TABLE, NAMES, status_in, statuses, validate

ASKED_FOR = [
    *(f"tpu-v3-{cores}" for cores in (32, 128, 256, 512, 1024, 2048, 8192)),
    *(f"tpu-v4-{cores}" for cores in (16, 128, 512)),
    "tpu-v5p-16",
    *(f"tpu-{kind}-{chips}" for kind in ("v5e", "v6e") for chips in (16, 256)),
    *(
        "h100-1", "h100-8", "h200-1", "h200-8", "b200-1", "b200-8", "v100-8", "dgx-1", "dgx-2h", "cpu-cluster-1024",
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
    elif name in ("h100-1", "h200-1", "b200-1"):
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


def good(**changes):
    return {**systems.load("tpu-v3-32"), "submitter": "Example", **changes}


def test_a_good_description_has_no_problems_and_its_software_may_be_an_object_as_published():
    assert validate(good()) == validate(good(other_software_stack={"nccl_version": "2.7.5"})) == []


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_field_is_named(name):
    description = good()
    del description[name]
    (problem,) = validate(description)
    assert problem.startswith(f"{name}: missing")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (8, 'number 8, and every field is a string; write "8"'),
        (None, "null"),
        (True, "boolean true"),
        ([], "list"),
    ],
)
def test_a_value_that_is_no_string_is_named(name, value, kind):
    problems = validate({**good(), name: value})
    if value == 8 and value is not True and name not in IN_TABLE | {"division", "status"}:
        assert problems == []  # the stock tools take a number where no table shows the field
    else:
        (problem,) = problems
        assert problem.startswith(f"{name}: ") and kind in problem


def test_a_misspelled_field_is_recognized():
    description = good()
    description["divison"] = description.pop("division")
    (problem,) = validate(description)
    assert "'divison'" in problem and "rename it to 'division'" in problem


@pytest.mark.parametrize("field", [field.name for field in FIELDS if field.needed])
def test_a_draft_may_leave_empty_what_a_submission_must_give(field):
    assert validate({**good(), field: ""}, submission=False) == []
    (problem,) = validate({**good(), field: ""})
    assert problem.startswith(f"{field}: empty")


@pytest.mark.parametrize("text", ["many", "-1", "8.0", "8 ", "²", "1e3"])
def test_counts_are_digits(text):
    problems = validate(good(accelerators_per_node=text))
    assert problems == [] if text == "8 " else "accelerators_per_node" in problems[0]


def test_zero_accelerators_but_not_zero_nodes():
    assert validate(good(accelerators_per_node="0")) == []
    assert "number_of_nodes" in validate(good(number_of_nodes="0"))[0]


def test_placeholders_of_published_descriptions_are_found():
    assert "placeholder" in validate(good(cooling="TODO"))[0]
    assert "placeholder" in validate(good(host_processor_model_name="CPUName"))[0]
    assert validate(good(hw_notes="none")) == []


def test_status_words_change_with_the_round():
    assert "preview" not in statuses("0.6.0") and "preview" in statuses("0.7.0")
    assert "'preview'" in validate(good(status="preview"), "0.6.0")[0]
    assert validate(good(status="Available cloud"), "4.1.0") == []
    assert "Available cloud" in validate(good(), "4.1.0")[0]
    assert "write 'closed'" in validate(good(division="cloosed"))[0]


@pytest.mark.parametrize("value", [None, [], "text", 3])
def test_a_description_that_is_no_object(value):
    (problem,) = validate(value)
    assert "33 fields" in problem


def test_a_short_status_gets_the_rounds_words():
    short = ("onprem", "cloud", "research", "preview")
    assert tuple(status_in("3.1.0", word) for word in short) == short
    long = ("Available on-premise", "Available cloud", "Research, Development, or Internal (RDI)", "Preview")
    assert tuple(status_in("6.1.0", word) for word in short) == long and set(long) == set(statuses("6.1.0"))
    assert status_in("6.1.0", "odd") == "odd"
