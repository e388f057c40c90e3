"""The directions in which the parts of the project may import one another."""

import ast
import graphlib
import pathlib
import subprocess
import sys

import pytest

from common.config import benchmarks

ROOT = pathlib.Path(__file__).resolve().parents[1]
BENCHMARKS = benchmarks.NAMES
HIDDEN = (
    "common.train.loop",
    "common.run.mllog",
    "common.train.evaluation_pool",
    "common.train.checkpoint",
    "common.train.step",
)
BACKENDS = ("single", "mirrored", "multiworker", "horovod", "tpu")


def imports(path):
    """Full names of all that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        yield from _imported(node, path)


def _imported(node, path=""):
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, f"{path}: relative import"
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def found(folder, forbidden):
    def within(name):
        return any(name == part or name.startswith(part + ".") for part in forbidden)

    return [f"{p}: {n}" for p in sorted((ROOT / folder).rglob("*.py")) for n in imports(p) if within(n)]


def test_there_are_benchmarks():
    assert "resnet" in BENCHMARKS


def test_common_imports_no_benchmark():
    assert found("common", [*BENCHMARKS, "tests", "bench", "studies"]) == []


@pytest.mark.parametrize("part", ["compliance", "systems"])
def test_the_checker_and_the_systems_import_no_tensorflow_and_no_benchmark(part):
    assert found(part, ["tensorflow", "tf_keras", "absl", *BENCHMARKS]) == []
    # The prediction alone computes with arrays; its command imports them when asked.
    assert [hit for hit in found(part, ["numpy"]) if "systems/predict/" not in hit] == []


@pytest.mark.parametrize("part", ["compliance", "systems"])
def test_no_module_imports_one_that_imports_it(part):
    """Within functions neither; `CycleError` names the circle."""
    paths = {
        path: ".".join(path.relative_to(ROOT).with_suffix("").parts) for path in (ROOT / part).rglob("*.py")
    }
    modules = {path: name.removesuffix(".__init__") for path, name in paths.items()}
    graph = {
        module: {
            # A name in a module, a module, or a name in a package.
            next((m for m in (name, name.rpartition(".")[0]) if m in modules.values()), module)
            for name in imports(path)
        }
        - {module}
        for path, module in modules.items()
    }
    assert len(list(graphlib.TopologicalSorter(graph).static_order())) == len(modules)


def test_the_writer_of_files_imports_nothing_of_the_project_but_errors():
    ours = {name for name in imports(ROOT / "common/files.py") if name.startswith("common")}
    assert ours == {"common.errors.UserError"}


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_a_benchmark_sees_one_replica(benchmark):
    """Neither the loop nor the log nor a backend; nor another benchmark."""
    backends = [f"common.distributed.replicas.{name}" for name in BACKENDS]
    others = [name for name in BENCHMARKS if name != benchmark]
    assert found(benchmark, [*HIDDEN, *backends, *others]) == []


def test_only_replicas_know_tensorflow_s_strategies():
    for path in sorted((ROOT / "common").rglob("*.py")):
        if path.is_relative_to(ROOT / "common/distributed/replicas"):
            continue
        assert "tf.distribute" not in path.read_text(), path


def test_a_bench_script_finds_the_project():
    """`python bench/NAME.py` has bench/ on its path, not the project."""
    packages = {p.parent.name for p in ROOT.glob("*/__init__.py")}
    for path in sorted((ROOT / "bench").glob("[a-z]*.py")):
        body = ast.parse(path.read_text()).body
        names = {name.split(".")[0] for node in body for name in _imported(node)}
        if names & packages:
            assert "sys.path.insert(0," in path.read_text(), path


PRINT_LOADED = "import sys; print([m for m in ('tensorflow', 'tf_keras') if m in sys.modules])"


@pytest.mark.parametrize(
    "modules",
    [
        "compliance.cli, compliance.check, compliance.report, compliance.compare, compliance.package, systems",
        *(f"{name}.presets" for name in BENCHMARKS),
        "common.config.clock, common.config.overrides, common.train.events, common.run.mllog",
        "common.run.results, common.run.progress",
    ],
)
def test_tensorflow_stays_out(modules):
    code = f"import {modules}; {PRINT_LOADED}"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr
