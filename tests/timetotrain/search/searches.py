"""Makes a benchmark with free runs for tests of searches: a package that writes a log computed from a formula."""

import csv
import os
import pathlib
import sys
from collections.abc import Iterator, Sequence

import optuna
import pytest

from common.config import benchmarks
from timetotrain.search import driver

ROOT = pathlib.Path(__file__).resolve().parents[3]
# Accuracy falls off with the distance of log10(rate) from -1 and of the weight decay from 0.3; more epochs take longer.
CONFIG = """
import dataclasses
from common.config.schema import RunConfig

@dataclasses.dataclass(frozen=True)
class Config(RunConfig):
    benchmark: str = "bowl"
    precision: str = "fp32"
    quality_target: float = 0.9
    train_epochs: float = 10.0
    num_train_examples: int = 100
    num_eval_examples: int = 10

@dataclasses.dataclass(frozen=True)
class Both(Config):
    # Two qualities, as Mask R-CNN has.
    @property
    def logged_target(self):
        return {"BBOX": self.quality_target, "SEGM": 0.9}
"""
PRESETS = """
from bowl.config import Both, Config
from common.config.optimizer import Sgd

PRESETS = {"cpu-tiny": Config(system="cpu-tiny", optimizer=Sgd()),
           "both": Both(system="both", optimizer=Sgd())}
"""
MAIN = """
import json, math, os, pathlib, signal, sys, time
from common.distributed import heartbeat

heartbeat.start()
flags = dict(a.lstrip("-").split("=", 1) for a in sys.argv[1:])
get = lambda name, default: float(flags.get("config." + name, default))
momentum = get("optimizer.momentum", 0.9)
if momentum == 0.5:
    sys.exit("error: no run with this momentum")
rate, decay = get("optimizer.base_learning_rate", 1.0), get("optimizer.weight_decay", 0)
epochs = get("train_epochs", 10)
distance = (math.log10(rate) + 1) ** 2 + (decay - 0.3) ** 2
both = flags["system"] == "both"
quality = float("nan") if momentum == 0.75 else 1 - distance - 0.1 / epochs

def log(quality, status, reason):
    folder = pathlib.Path(flags["result_dir"], flags["system"], "bowl")
    folder.mkdir(parents=True, exist_ok=True)
    value = {"BBOX": quality, "SEGM": 0.5 - quality} if both else quality
    lines = [("run_start", None, 0, {}), ("eval_accuracy", value, 60000 * epochs, {"epoch_num": epochs}),
             ("run_stop", None, 60000 * epochs, {"status": status, "reason": reason})]
    with open(folder / "result_0.txt", "w") as file:
        for key, value, at, metadata in lines:
            record = {"namespace": "", "time_ms": at, "event_type": "POINT_IN_TIME", "key": key, "value": value,
                      "metadata": {"file": "", "lineno": 1, **metadata}}
            file.write(":::MLLOG " + json.dumps(record) + "\\n")

def terminated(number, frame):
    log(0.99, "aborted", "SIGTERM")
    sys.exit(143)

signal.signal(signal.SIGTERM, terminated)
print("trained", flush=True)
time.sleep(float(os.environ.get("BOWL_SECONDS", 0)))
if momentum == 0.25:
    log(0.99, "aborted", "IndexError: out of range")
    sys.exit(1)
reached = quality >= get("quality_target", 0.9)
missed = "the target was not reached in 10 steps" + os.environ.get("BOWL_WORDS", "")
log(quality, *(("success", "") if reached else ("aborted", missed)))
sys.exit(0 if reached else 1)
"""
# `python -m timetotrain.search` in a process that lists the benchmark: its folder is not in the checkout.
SEARCH = """
import runpy
from common.config import benchmarks

benchmarks.NAMES = (*benchmarks.NAMES, "bowl")
runpy.run_module("timetotrain.search", run_name="__main__", alter_sys=True)
"""
RATE = "optimizer.base_learning_rate=0.0001..10:log"
DECAY = "optimizer.weight_decay=0..1"
GRID = ["--space", "train_epochs=1,2,3,4", "--sampler=grid"]


def bowl_in(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pathlib.Path]:
    """Makes a folder, for fixtures, in which `python -m bowl` is a benchmark that this process lists."""
    package = tmp_path / "packages" / "bowl"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "config.py").write_text(CONFIG)
    (package / "presets.py").write_text(PRESETS)
    (package / "__main__.py").write_text(MAIN)
    (package / "search.py").write_text(SEARCH)
    monkeypatch.setattr(benchmarks, "NAMES", (*benchmarks.NAMES, "bowl"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(package.parent), str(ROOT)]))
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "bowl"]:
        del sys.modules[name]


def search(*flags: str) -> list[str]:
    """Arguments of `python -m timetotrain.search`."""
    return ["bowl", "--system=cpu-tiny", "--data_dir=.", "--name=it", *flags]


def in_a_process(flags: Sequence[str]) -> list[str]:
    """The command that runs `python -m timetotrain.search`, with these arguments, in a process of its own."""
    return [sys.executable, "-m", "bowl.search", *flags]


def table(folder: pathlib.Path) -> list[dict[str, str]]:
    """The rows of the search's search.csv."""
    with open(folder / "results" / "search" / "it" / "search.csv") as file:
        return list(csv.DictReader(file))


def study(folder: pathlib.Path) -> optuna.Study:
    """The Optuna study in the search's database."""
    storage = driver.open_storage(folder / "results" / "search" / "it" / "search.db")
    return optuna.load_study(study_name="it", storage=storage)


def epochs_tried(folder: pathlib.Path) -> list[str]:
    """The values of `GRID` that have a result."""
    return sorted(row["train_epochs"] for row in table(folder) if row["state"] == "done")
