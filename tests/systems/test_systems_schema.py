"""Tests the 33 fields: presence, types, vocabularies, and messages that name the field and the fix."""

import pytest

import systems
from systems.schema import FIELDS, NAMES, statuses, validate


def good(**changes):
    return {
        **systems.load("tpu-v3-32"),
        "submitter": "Example",
        **{name.replace("_on_chip", "_on-chip"): value for name, value in changes.items()},
    }


def test_the_fields_are_those_the_stock_checker_requires(tmp_path):
    import inspect

    from mlperf_logging.system_desc_checker import system_desc_checker

    source = inspect.getsource(system_desc_checker.check_system_desc)
    assert len(NAMES) == len(set(NAMES)) == 33
    assert all(f'"{name}"' in source for name in NAMES)


def test_a_good_description_has_no_problems():
    assert validate(good()) == []


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_field_is_named(name):
    description = good()
    del description[name]
    (problem,) = validate(description)
    assert problem.startswith(f"{name}: missing")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("value", "kind"), [(8, "number 8"), (None, "null"), (True, "boolean true"), ([], "list")]
)
def test_a_value_that_is_no_string_is_named(name, value, kind):
    (problem,) = validate({**good(), name: value})
    assert problem.startswith(f"{name}: ") and kind in problem


def test_a_number_is_to_be_quoted():
    assert 'write "8"' in validate(good(accelerators_per_node=8))[0]


def test_a_misspelt_field_is_recognised():
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


def test_the_software_stack_may_be_an_object_as_published():
    assert validate({**good(), "other_software_stack": {"nccl_version": "2.7.5"}}) == []
