"""Tests every preset of every benchmark: valid, and logged as the rules require."""

import ast
import dataclasses
import functools
import importlib
import json
import pathlib
import subprocess
import sys
import typing
from collections.abc import Iterator

import pytest

import systems
from common.config import benchmarks
from common.config.digest import digest, from_dict, to_dict
from common.config.schema import RunConfig
from tests.benchmarks import ROOT, broken_rules

BENCHMARKS = benchmarks.NAMES
EVERY = [(b, name) for b in BENCHMARKS for name in importlib.import_module(f"{b}.presets").PRESETS]
CLOSED_RULES = json.loads((ROOT / "tests/pinned/closed_rules.json").read_text())
# MLPerf's benchmarks, and their targets per ruleset; a preset of another task may have a lower target.
TARGETS = {
    "gnmt": {"0.6.0": 24.0, "0.7.0": 0.24},
    "maskrcnn": {},
    "resnet": {},
    "ssd": {},
    "transformer": {"0.6.0": 25.0, "0.7.0": 0.25},
}
MLPERF = [(b, name) for b, name in EVERY if b in TARGETS]


def preset(benchmark: str, name: str) -> RunConfig:
    return importlib.import_module(f"{benchmark}.presets").PRESETS[name]


def fields_of(config: object) -> Iterator[tuple[str, object, object]]:
    hints = typing.get_type_hints(type(config))
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield from fields_of(value)
        else:
            yield field.name, value, hints[field.name]


def test_presets_need_no_numpy() -> None:
    """tests/test_imports.py tests that they need no TensorFlow."""
    modules = ", ".join(f"{benchmark}.presets" for benchmark in BENCHMARKS)
    code = f"import sys, {modules}; print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize(("benchmark", "name"), EVERY)
def test_every_preset_is_valid(benchmark: str, name: str) -> None:
    config = preset(benchmark, name)
    config.validate()
    assert config.system == name and config.source and isinstance(config, RunConfig)
    assert config.hardware == "local" or config.hardware in systems.names()
    again = from_dict(type(config), json.loads(json.dumps(to_dict(config))))
    assert again == config and digest(again) == digest(config)
    for field, value, kind in fields_of(config):
        if typing.get_origin(kind) is tuple:
            element = typing.get_args(kind)[0]
            assert type(value) is tuple, field
            assert all(type(v) is element for v in value) or typing.get_origin(element), field
        else:
            kinds = typing.get_args(kind) or (kind,)  # `float | None` has two.
            assert type(value) in kinds, f"{field}={value!r}: an override would give another digest"


Names = dict[str, ast.AST | pathlib.Path]


@functools.cache
def names_in(path: pathlib.Path) -> Names:
    """The meaning of a file's module-level names: an expression, a function, or a file of the same benchmark."""
    names: Names = {}
    package = path.parent.name
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            names[node.name] = node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                assert isinstance(target, ast.Name), (
                    f"{path.name}:{node.lineno}: changes a table after its literal"
                )
                names[target.id] = node.value
        elif isinstance(node, ast.ImportFrom) and node.module == package:
            names |= {alias.asname or alias.name: path.parent / f"{alias.name}.py" for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module.startswith(f"{package}."):
            assert node.module == f"{package}.config", f"{path.name}:{node.lineno}: takes from another file"
    return names


def expressions(node: ast.AST, path: pathlib.Path) -> Iterator[tuple[str | None, ast.AST, pathlib.Path]]:
    """(name, expression, file) of each preset of a table; the name is None where one expression makes several."""
    match node:
        case ast.Call(func=ast.Name(id="with_names" | "published"), args=[table]):
            yield from expressions(table, path)
        case ast.Name(id=table):
            yield from expressions(names_in(path)[table], path)
        case ast.Attribute(value=ast.Name(id=module), attr=table):
            file = names_in(path)[module]
            yield from expressions(names_in(file)[table], file)
        case ast.Dict():
            for key, value in zip(node.keys, node.values, strict=True):
                if key is None:
                    yield from expressions(value, path)
                else:
                    yield ast.literal_eval(key), value, path
        case ast.Call(func=ast.Name(id="later_machines"), args=[_, batches]):
            yield None, batches, path  # Its presets name the published rows, which are read as any other.
        case _:
            yield None, node, path


def hops(node: ast.AST, names: Names) -> int:
    """The longest chain of names that a reader of an expression must look up in its file."""
    used = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and n.id in names}
    assert not any(isinstance(names[name], pathlib.Path) for name in used), f"{used}: in another file"
    return max((1 + hops(names[name], names) for name in used), default=0)


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_a_preset_is_read_in_one_file_with_at_most_two_hops(benchmark: str) -> None:
    """A reader goes from a preset to its base or optimizer, then to the names in that, no further, and in one file."""
    path = ROOT / benchmark / "presets.py"
    actual = list(expressions(ast.Name(id="PRESETS"), path))
    names = [name for name, _, _ in actual if name]
    presets = [name for b, name in EVERY if b == benchmark]
    families = len(actual) - len(names)
    assert [name for name in presets if not families or name in names] == names
    far = {name or ast.unparse(node): hops(node, names_in(file)) for name, node, file in actual}
    assert max(far.values()) <= 2, {name: n for name, n in far.items() if n > 2}


def test_hops_are_counted_through_functions_and_attributes() -> None:
    source = "A = Config()\nB = replace(A, x=1)\ndef f(): return replace(B)\nC = f()\nD = replace(A, y=B.x)"
    names = {n.name if isinstance(n, ast.FunctionDef) else n.targets[0].id: n for n in ast.parse(source).body}
    values = {name: node if isinstance(node, ast.FunctionDef) else node.value for name, node in names.items()}
    assert {name: hops(node, values) for name, node in values.items()} == {
        "A": 0,
        "B": 1,
        "f": 2,
        "C": 3,
        "D": 2,
    }


@pytest.mark.parametrize("benchmark", ["resnet", "ssd", "maskrcnn", "tsm_kinetics"])
def test_the_last_batch_of_a_tiny_evaluation_is_filled_in_part(benchmark: str) -> None:
    config = preset(benchmark, "cpu-tiny")
    assert config.num_eval_examples % config.eval_batch_size


# Machines that nobody has submitted on -> the published row whose values their presets take.
ROWS = {
    "tpu-v5e-16": "tpu-v4-16", "tpu-v5e-256": "tpu-v3-256", "tpu-v6e-16": "tpu-v4-16",
    "tpu-v6e-256": "tpu-v3-256", "h100-1": "dgx-1", "h100-8": "dgx-1", "h200-1": "dgx-1", "h200-8": "dgx-1",
    "b200-8": "dgx-1",
}  # fmt: skip
# What such a preset may have of its own: the backend, and what a machine's memory, cores and number format decide.
OWN = {"system", "hardware", "source", "division", "replicas"}
OWN_OF_GPUS = OWN | {"precision", "loss_scale", "accumulation_steps"}
# A single GPU sums the gradients of the row's batch in parts, and evaluates smaller batches.
OWN_OF_A_GPU = OWN_OF_GPUS | {"num_replicas", "eval_batch_size"}


@pytest.mark.parametrize(("benchmark", "name"), [(b, name) for b in TARGETS for name in ROWS])
def test_a_preset_of_a_machine_without_submissions_has_the_values_of_its_row(
    benchmark: str, name: str
) -> None:
    config, row = preset(benchmark, name), preset(benchmark, ROWS[name])
    assert config.source.startswith(f"as {row.system}, round v{row.ruleset.removesuffix('.0')}: ")
    assert (config.division, config.replicas, config.hardware) == ("open", "pjrt", name)
    values, published = list(fields_of(config)), list(fields_of(row))
    differ = {mine[0] for mine, theirs in zip(values, published, strict=True) if mine != theirs}
    allowed = OWN if name.startswith("tpu") else OWN_OF_A_GPU if name.endswith("-1") else OWN_OF_GPUS
    assert differ <= allowed


@pytest.mark.parametrize(("benchmark", "name"), MLPERF)
def test_the_closed_rules_that_a_preset_breaks_are_pinned(
    benchmark: str, name: str, tmp_path: pathlib.Path
) -> None:
    """tests/pinned/closed_rules.json has the keys under the preset's own ruleset, and under 0.7.0."""
    config, broken = preset(benchmark, name), CLOSED_RULES[benchmark].get(name, {})
    for ruleset, column in ((config.ruleset, "own"), ("0.7.0", "0.7.0")):
        closed = dataclasses.replace(
            config,
            ruleset=ruleset,
            division="closed",
            smoke_run=False,
            quality_target=TARGETS[benchmark].get(ruleset, config.quality_target),
        )
        rules = broken_rules(closed, tmp_path / f"{ruleset}.txt")
        assert rules == set(broken.get(column, [])), column


@pytest.mark.parametrize(("benchmark", "name"), MLPERF)
def test_the_log_of_a_preset_breaks_nothing_but_the_target(
    benchmark: str, name: str, tmp_path: pathlib.Path
) -> None:
    """The log keeps the preset's ruleset and division; 0.7.0 accepts no target of ResNet below 75.9 %."""
    config = preset(benchmark, name)
    low = benchmark == "resnet" and config.quality_target < 0.759
    assert broken_rules(config, tmp_path / "result_0.txt") == ({"eval_accuracy"} if low else set())
