"""Tests the directions in which the parts of the project may import one another, at any depth of folders."""

import ast
import dataclasses
import functools
import graphlib
import importlib
import pathlib
import re
import subprocess
import sys

import pytest

from common.config.benchmarks import NAMES as BENCHMARKS
from common.config.schema import RunConfig

ROOT = pathlib.Path(__file__).resolve().parents[1]
# The folders of the project from the bottom up: each imports itself and those before it. A benchmark imports no other.
LAYERS = ("common", "systems", "compliance", *BENCHMARKS, "timetotrain", "lab", "tools")
# The folders of common/ from the bottom up: each may import itself and those before it.
ROOMS = (
    *("tensorflow_start", "errors", "files", "untrusted", "machine_tools", "hlo"),
    *("config", "optim", "distributed"),
    *("data", "layers", "train", "detection", "text", "export"),
)
# Entries that start the program by a name below it. They hold no code of their own.
THIN_ENTRIES = tuple(f"{name}/__main__.py" for name in BENCHMARKS)
# What the checker and the systems may import of common/. These import nothing of the project but each other.
LEAVES = {
    "compliance": ["common.errors", "common.files", "common.untrusted"],
    "systems": ["common.errors", "common.files", "common.untrusted", "common.machine_tools", "common.hlo"],
}
# Below timetotrain/, the files that import a module whose name is known when they run, and what it may be.
DYNAMIC = {
    "common/config/benchmarks.py": "the modules of a benchmark, for those who call `benchmarks.module`",
    "common/config/plugins.py": "a user's own module, named in a configuration",
    "common/export/trained.py": "the benchmark that a checkpoint names",
    "common/export/formats.py": "packages of other formats, where they are installed",
    "common/layers/weight_files.py": "safetensors, where it is installed",
    "common/text/official.py": "official.*, TensorFlow's models, where they are installed",
}
# A call of one of these imports a module: importlib.import_module, benchmarks.module, runpy.run_module, ....
IMPORTERS = (
    *("import_module", "__import__", "module", "run_module", "run_path"),
    *("exec_module", "spec_from_file_location"),
)
THIN_LINES = 12
# Modules hidden from a benchmark, which passes its task to them and sees a single replica.
HIDDEN = (
    *("common.train.loop", "common.train.programs", "common.train.step", "common.train.checkpoint"),
    "common.train.evaluation_pool",
    "common.export",
)
BACKENDS = (
    "single", "mirrored", "multiworker", "horovod", "tpu", "strategy", "keyed", "cluster", "xla", "pjrt",
)  # fmt: skip


@functools.cache
def imports(path):
    """Full names of all imports of a file, at any place in it."""
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        names += _imported(node, path)
    return names


def _imported(node, path=""):
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, f"{path}: relative import"
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def files(*folders):
    """The Python files in folders, at any depth, or single files."""
    actual = []
    for folder in folders:
        path = ROOT / folder
        actual += [path] if path.is_file() else sorted(path.rglob("*.py"))
    assert actual, folders
    return actual


def within(name, parts):
    return any(name == part or name.startswith(part + ".") for part in parts)


def offenders(folder, forbidden, allowed=()):
    return [
        f"{p.relative_to(ROOT)}: {n}"
        for p in files(folder)
        for n in imports(p)
        if within(n, forbidden) and not within(n, allowed)
    ]


def module_of(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@functools.cache
def graph():
    """{module: modules of the project that it imports, at any place in it}."""
    folders = [*LAYERS]
    modules = {module_of(path): path for path in files(*folders)}

    def resolved(name):
        while name and name not in modules:
            name = name.rpartition(".")[0]
        return name

    return {m: {resolved(n) for n in imports(path)} - {m, ""} for m, path in modules.items()}


def test_there_are_benchmarks_and_rooms():
    assert "resnet" in BENCHMARKS and len(BENCHMARKS) == 9
    entries = {p.stem for p in (ROOT / "common").iterdir() if p.is_dir() or p.suffix == ".py"}
    assert entries - {"__init__", "__pycache__"} == set(ROOMS), "every room has its place among ROOMS"
    assert len([p for p in (ROOT / "common").iterdir() if p.name != "__pycache__"]) <= 16


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_of_common_imports_those_below_it(room):
    path = "common/" + (room if (ROOT / "common" / room).is_dir() else f"{room}.py")
    above = [f"common.{name}" for name in ROOMS[ROOMS.index(room) + 1 :]]
    assert offenders(path, above) == []


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_imports_those_below_it(layer):
    """The layers are those of docs/architecture.md; imports inside functions count too."""
    above = (*LAYERS[LAYERS.index(layer) + 1 :], "tests")
    if layer in BENCHMARKS:  # Benchmarks stand side by side.
        above = [name for name in (*LAYERS, "tests") if name not in ("common", layer)]
    hits = [hit for hit in offenders(layer, above) if not hit.startswith(THIN_ENTRIES)]
    assert hits == []


def test_thin_entries_hold_no_code():
    for entry in THIN_ENTRIES:
        text = (ROOT / entry).read_text()
        assert len(text.splitlines()) <= THIN_LINES and "def " not in text, entry


def test_at_most_17_folders_stand_at_the_root():
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if tracked.returncode:
        pytest.skip("no git checkout: what belongs to the project is not known")
    names = tracked.stdout.split("\0")
    assert len({name.split("/")[0] for name in names if "/" in name and not name.startswith(".")}) <= 17


@pytest.mark.parametrize("part", LEAVES)
def test_the_checker_and_the_systems_import_leaves_of_common_alone(part):
    """Not even inside a function."""
    assert offenders(part, ["common"], LEAVES[part]) == []


def test_the_leaves_of_common_import_nothing_of_the_project_but_leaves():
    for leaf in sorted({name for names in LEAVES.values() for name in names}):
        path = leaf.replace(".", "/")
        for file in files(path if (ROOT / path).is_dir() else f"{path}.py"):
            ours = [name for name in imports(file) if name.split(".")[0] in LAYERS]
            assert all(within(name, LEAVES["systems"]) for name in ours), file


def test_imports_by_name_stand_in_known_files():
    """An import that is made by a call hides from the tests above; none leads from systems/ to a benchmark."""
    paths = files(*LAYERS[: LAYERS.index("timetotrain")])
    assert {p.relative_to(ROOT).as_posix() for p in paths if _imports_by_name(p)} == set(DYNAMIC)


def _imports_by_name(path):
    calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    return any(getattr(call, "attr", getattr(call, "id", "")) in IMPORTERS for call in calls)


@pytest.mark.parametrize("part", ["compliance", "systems"])
def test_the_checker_and_the_systems_import_no_tensorflow(part):
    assert offenders(part, ["tensorflow", "tf_keras", "absl"]) == []
    # The prediction alone computes with arrays; its command imports them when asked. The compilers run in a process
    # of their own.
    apart = ("systems/forecast/", "systems/compile/worker.py")
    assert [hit for hit in offenders(part, ["numpy"]) if not any(name in hit for name in apart)] == []


def test_the_writer_of_files_imports_nothing_of_the_project_but_errors():
    ours = {name for name in imports(ROOT / "common/files.py") if name.startswith("common")}
    assert ours == {"common.errors.UserError"}


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_a_benchmark_sees_one_replica(benchmark):
    """A benchmark imports neither the loop nor a backend."""
    backends = [f"common.distributed.replicas.{name}" for name in BACKENDS]
    assert offenders(benchmark, [*HIDDEN, *backends]) == []


def test_no_two_files_import_each_other():
    """Circles through other files count too, as do imports inside functions."""
    edges = graph()
    assert len(list(graphlib.TopologicalSorter(edges).static_order())) == len(edges)


def test_only_replicas_know_tensorflow_s_strategies():
    for path in files("common"):
        if not path.is_relative_to(ROOT / "common/distributed/replicas"):
            assert "tf.distribute" not in path.read_text(), path


def test_no_room_of_common_names_a_field_of_one_benchmark():
    shared = set(RunConfig.__annotations__)  # Constants too, which one benchmark may have as a field.
    configs = [importlib.import_module(f"{name}.config").Config for name in BENCHMARKS]
    fields = [{field.name for field in dataclasses.fields(config)} - shared for config in configs]
    dirs = [set(dir(config)) for config in configs]  # Constants of other benchmarks, too.
    private = {
        name for i, names in enumerate(fields) for name in names - set().union(*dirs[:i], *dirs[i + 1 :])
    }
    hits = []
    for path in files("common"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr in private:
                of = (
                    node.value.attr
                    if isinstance(node.value, ast.Attribute)
                    else getattr(node.value, "id", "")
                )
                hits += [f"{path}:{node.lineno}: {node.attr}"] if of.strip("_") == "config" else []
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("getattr", "hasattr"):
                names = [a.value for a in node.args if isinstance(a, ast.Constant)]
                hits += [f"{path}:{node.lineno}: {name}" for name in names if name in private]
    assert "eval_workers" in private and hits == []


def test_no_file_of_bench_edits_its_path():
    """The scripts run as `python -m lab.bench.NAME`, which needs no changed sys.path."""
    for path in files("lab/bench"):
        assert "sys.path." not in path.read_text(), path


def test_contenders_of_other_interpreters_need_nothing_of_this_environment():
    """PyTorch's and JAX's interpreters have their own packages; of the project they read what needs none."""
    contenders = ROOT / "lab/bench/contenders"
    paths = [*contenders.glob("torch_*.py"), *contenders.glob("jax_*.py"), contenders / "__main__.py"]
    paths += [
        *files(
            "lab/bench/__init__.py",
            "lab/bench/gpu/child.py",
            "lab/bench/gpu/peers.py",
            "common/__init__.py",
            "common/tensorflow_start.py",
        ),
    ]
    allowed = {*sys.stdlib_module_names, "torch", "jax", "flax", "optax", "numpy"}
    for path in paths:
        others = {name for name in imports(path) if name.split(".")[0] not in allowed}
        ours = ("lab.bench.contenders.", "lab.bench.gpu.child")
        start = ("common", "common.tensorflow_start.install")
        hits = {name for name in others if name not in start and not name.startswith(ours)}
        assert not hits, f"{path}: {hits}"
        rivals = [n.split(".")[3] for n in others if n.startswith("lab.bench.contenders.")]
        assert all(name.startswith(("torch_", "jax_")) for name in rivals), path


PRINT_LOADED = "import sys; print([m for m in ('tensorflow', 'tf_keras') if m in sys.modules])"


@pytest.mark.parametrize(
    "modules",
    [
        "compliance.api, compliance.explain, compliance.report.page, compliance.report.compare, "
        "compliance.packaging.package, systems",
        *(f"{name}.presets" for name in BENCHMARKS),
        ", ".join(module_of(path) for path in files("common/config", "common/errors.py", "common/files.py")),
        "timetotrain.cli, timetotrain.verbs",
        "common.train.events, timetotrain.run.mllog, timetotrain.run.results, timetotrain.run.progress, "
        "timetotrain.run.options",
    ],
)
def test_tensorflow_stays_out(modules):
    code = f"import {modules}; {PRINT_LOADED}"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


_SHOWN = """
import sys, common, tensorflow as tf, tf_keras
[hasattr(module, "__file__") for module in list(sys.modules.values())]  # As AutoGraph does.
print(*sorted({"jax", "keras", "sklearn", "pandas", "scipy"} & set(sys.modules)))
print(tf.keras.layers.Dense is tf_keras.layers.Dense)
import jax
import scipy.linalg
print(jax.numpy.ones([2]).sum())
"""


def test_tensorflow_starts_without_packages_that_nothing_here_uses_through_it():
    done = subprocess.run(
        [sys.executable, "-c", _SHOWN], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.stdout.splitlines() == ["", "True", "2.0"], done.stdout + done.stderr


def test_every_import_has_a_form_that_the_wheel_renames():
    """setup.py's expressions see one line, which begins with the import."""
    packages = set(LAYERS) - {"timetotrain", "lab", "tools"}
    for path in files(*packages, "timetotrain"):
        lines = path.read_text().splitlines()
        for node in ast.walk(ast.parse("\n".join(lines))):
            if isinstance(node, ast.ImportFrom) and node.module.partition(".")[0] in packages:
                assert lines[node.lineno - 1].lstrip().startswith(f"from {node.module} import "), (
                    path,
                    node.lineno,
                )
            elif isinstance(node, ast.Import) and {n.name.partition(".")[0] for n in node.names} & packages:
                assert lines[node.lineno - 1].strip() == f"import {node.names[0].name}", (path, node.lineno)


# The files with imports of names that TensorFlow, Keras or jax do not publish, each with its reason.
PRIVATE = {
    "common/distributed/tensorflow_private.py",
    "common/distributed/stablehlo.py",  # Loaded late.
    *("common/distributed/replicas/pjrt_client.py", "systems/compile/worker.py"),  # jax's.
}


def test_unpublished_names_are_in_a_few_files():
    private = re.compile(r"^ *from (?:tensorflow\.(?:python|compiler|core)|tf_keras\.src|jax\._src)\b", re.M)
    paths = {path.relative_to(ROOT).as_posix() for path in files(*LAYERS) if private.search(path.read_text())}
    assert paths == PRIVATE
