"""Defines settings and fixtures of all tests, and eight CPU devices of TensorFlow and of jax."""

import contextlib
import ctypes
import gc
import os
import pathlib
import sys

import pytest
from hypothesis import settings

from tools import deadline, journal

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
LOGICAL_CPUS = 8
os.environ["TTT_WEIGHTS"] = os.devnull  # No weights that this machine may store.
os.environ.setdefault("JAX_NUM_CPU_DEVICES", str(LOGICAL_CPUS))
os.environ.setdefault("JAX_ENABLE_COMPILATION_CACHE", "false")

# Rewritten assertions show their values, like those of a test module.
pytest.register_assert_rewrite("tests.benchmarks", "tests.translation")

# The same examples in every run, however busy the machine.
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.load_profile("repeatable")


SLOW = pathlib.Path(__file__).with_name("slow.txt")
HEADLINE = pathlib.Path(__file__).with_name("headline.txt")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the flags of `make quick`, `make test`, `make test-all` and `make e2e`."""
    parser.addoption("--quick", action="store_true", help="leave out the files that tests/slow.txt names")
    parser.addoption(
        "--headline", action="store_true", help="as --quick, but run the files that tests/headline.txt names"
    )
    parser.addoption("--rest", action="store_true", help="run the files that --headline leaves out")
    parser.addoption(
        "--journal", metavar="FILE", help="note there what passes, and leave out what has passed"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Keeps the journal where one is asked for, and the end of a run that has one."""
    if deadline.END in os.environ:
        config.pluginmanager.register(deadline.Deadline())
    path = config.getoption("--journal")
    if path:
        config.pluginmanager.register(
            journal.Journal(pathlib.Path(path), os.environ.get(journal.SOURCES) or journal.sources())
        )


def pytest_ignore_collect(collection_path: pathlib.Path, config: pytest.Config) -> bool | None:
    """Leaves out the files that --quick, --headline or --rest does not select; they are not even imported."""
    quick, rest = config.getoption("--quick"), config.getoption("--rest")
    if not (quick or rest or config.getoption("--headline")) or not collection_path.is_file():
        return None
    name = collection_path.relative_to(config.rootpath).as_posix()
    slow = name in SLOW.read_text().splitlines()
    left_out = slow and (quick or name not in HEADLINE.read_text().splitlines())
    return left_out != rest or None


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """An empty folder, which the first run of cpu-tiny in a module fills for the later ones."""
    return tmp_path_factory.mktemp("tiny")


@pytest.fixture(scope="module", autouse=True)
def memory_freed():
    """Frees, after each module, the graphs and variables that its tests leave, and what the allocator holds back."""
    yield
    if "tf_keras" in sys.modules:
        sys.modules["tf_keras"].backend.clear_session()
    gc.collect()
    with contextlib.suppress(AttributeError, OSError):  # Not glibc.
        ctypes.CDLL(None).malloc_trim(0)


def pytest_collection_finish():
    # Logical devices share one thread pool, so that a single replica is as fast as on one device.
    if "tensorflow" in sys.modules:
        import tensorflow as tf

        cpu = tf.config.list_physical_devices("CPU")[0]
        devices = [tf.config.LogicalDeviceConfiguration()] * LOGICAL_CPUS
        tf.config.set_logical_device_configuration(cpu, devices)
