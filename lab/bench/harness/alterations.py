"""Alters copies of the v6.0 tree: each alteration is a fault that a submitter makes, and the rules that should say it.

`base` completes the tree first, because its configuration files are names alone.
"""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from compliance.submission.runs import read_run

LORA = "AMD/results/MI350X_EPYC_9575F_primus/llama2_70b_lora"
SMALL = "MiTAC/results/MI325X_1node/llama31_8b"
_ALL = slice(None)
CODE = "AMD/benchmarks/llama2_70b_lora/implementations/MI350X_EPYC_9575F_primus"
CONFIG = f"{CODE}/config_MI355X_1x8x1.sh"
_EXPORTS = (
    "export LR=0.0006 MBS=1 TP=1 PP=1 CP=1 EP=1\nexport MAX_STEPS=550 GBS=8 GRADIENT_ACCUMULATION_STEPS=1\n"
)


@dataclass(frozen=True)
class Alteration:
    """`rule`: the rule that should speak; "" if any may, or another part of the project is to notice it."""

    name: str
    change: Callable[[Path], None]
    rule: str = ""


def base(root: Path) -> None:
    """Gives the lora entry the configuration that its logs name, and power logs of a sound kind."""
    (root / CONFIG).write_text(_EXPORTS)
    for log in logs(root, SMALL):
        start, stop = _span(log)
        target = log.parent / "power" / log.stem / "node_0.txt"
        target.parent.mkdir(parents=True)
        target.write_text(power(start, stop, seed=int(log.stem.rpartition("_")[2])))


def logs(root: Path, folder: str) -> list[Path]:
    """Returns the logs of a folder of runs, sorted by name."""
    return sorted((root / folder).glob("result_*.txt"))


def _span(log: Path) -> tuple[int, int]:
    run = read_run(log)
    return int(run.run_start), int(run.run_stop or run.run_start + 600_000)


def power(start: int, stop: int, watts: float = 7000, step: int = 1000, shift: int = 0, seed: int = 0) -> str:
    """Returns the text of a node's power log around a run (ms)."""

    def line(key: str, value: object, time: int) -> str:
        return ":::MLLOG " + json.dumps(
            {"namespace": "", "time_ms": time + shift, "event_type": "POINT_IN_TIME", "key": key, "value": value,
             "metadata": {"file": "meter.py", "lineno": 1}}
        )  # fmt: skip

    times = range(start - 5000 + step, stop + 5000, step)
    readings = [
        line("power_reading", watts + (37 * n + 11 * seed) % 200, time) for n, time in enumerate(times)
    ]
    first = [line("power_measurement_start", None, start - 5000), line("conversion_eff", 0.94, start - 5000)]
    return "\n".join([*first, *readings, line("power_measurement_stop", None, stop + 5000)]) + "\n"


def replace(folder: str, pattern: str, new: str, which: slice = _ALL) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        for log in logs(root, folder)[which]:
            # Not write_text: it would change the ends of lines.
            log.write_bytes(re.sub(pattern.encode(), new.encode(), log.read_bytes()))

    return change


def written(name: str, content: str | bytes) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content if isinstance(content, bytes) else content.encode())

    return change


def _configured(name: str, content: str) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        replace(LORA, "config_MI355X_1x8x1.sh", name)(root)
        (root / CONFIG).unlink()
        written(f"{CODE}/{name}", content)(root)

    return change


def _moved(root: Path) -> None:
    target = root / "AMD/benchmarks/flux1/implementations" / Path(CONFIG).name
    (root / CONFIG).rename(target)


def _powered(which: slice = _ALL, **changes: object) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        for log in logs(root, SMALL)[which]:
            start, stop = _span(log)
            said = {"seed": int(log.stem.rpartition("_")[2]), **changes}
            late, early = (1000 * int(said.pop(word, 0)) for word in ("late", "early"))
            (log.parent / "power" / log.stem / "node_0.txt").write_text(
                power(start + late, stop - early, **said)
            )

    return change


def _edit_power(pattern: str, new: str) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        for path in (root / SMALL / "power").glob("*/node_0.txt"):
            path.write_text(re.sub(pattern, new, path.read_text()))

    return change


def _hole(root: Path) -> None:
    for path in (root / SMALL / "power").glob("*/node_0.txt"):
        lines = path.read_text().splitlines()
        path.write_text("\n".join(lines[:100] + lines[130:]) + "\n")


def _renamed_power(root: Path) -> None:
    for path in (root / SMALL / "power").glob("*/node_0.txt"):
        path.rename(path.with_name("node_1.txt"))


def _second_node(root: Path) -> None:
    for path in (root / SMALL / "power").glob("*/node_0.txt"):
        shutil.copy(path, path.with_name("node_1.txt"))


def _two_runs(root: Path) -> None:
    first, second = logs(root, LORA)[:2]
    first.write_bytes(first.read_bytes() + second.read_bytes())


def _gap(root: Path) -> None:
    (root / LORA / "result_4.txt").rename(root / LORA / "result_14.txt")


def _copied(root: Path) -> None:
    first, second = logs(root, LORA)[:2]
    shutil.copy(first, second)


def _alike(root: Path) -> None:
    text = logs(root, LORA)[0].read_bytes()
    for index, log in enumerate(logs(root, LORA)):
        log.write_bytes(re.sub(rb'("key": "seed", "value": )\d+', rb"\g<1>%d" % (100 + index), text))


def _last_evaluation_alone(root: Path) -> None:
    for log in logs(root, LORA):
        lines = log.read_bytes().splitlines(keepends=True)
        evaluations = [n for n, line in enumerate(lines) if re.search(rb'"eval_(start|stop|accuracy)"', line)]
        last = max(n for n in evaluations if b'"eval_start"' in lines[n])
        log.write_bytes(b"".join(line for n, line in enumerate(lines) if n not in evaluations or n >= last))


def _contradicted(root: Path) -> None:
    log = logs(root, LORA)[0]
    lines = log.read_bytes().splitlines(keepends=True)
    at = max(n for n, line in enumerate(lines) if b'"eval_accuracy"' in line)
    lines.insert(at, re.sub(rb'"value": [\d.]+', b'"value": 1.7', lines[at]))
    log.write_bytes(b"".join(lines))


def _utf16(root: Path) -> None:
    log = logs(root, LORA)[0]
    log.write_bytes(log.read_bytes().decode().encode("utf-16"))


def _seconds(root: Path) -> None:
    replace(LORA, r'("time_ms": \d+)\d{3},', r"\1,", slice(0, 1))(root)


def described(field: str, value: str) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        path = root / "AMD/systems/MI350X_EPYC_9575F_primus.json"
        content = json.loads(path.read_text())
        path.write_text(json.dumps(content | {field: value}))

    return change


_JSON = json.dumps({"trainer": {"lr": 0.0006, "tensor_model_parallel_size": 4}})
TREES = tuple(
    Alteration(*one)
    for one in (
        ("the named configuration is not there", lambda root: (root / CONFIG).unlink(), "config.missing"),
        ("another rate in the file", written(CONFIG, _EXPORTS.replace("0.0006", "0.0005")), "config.differs"),
        ("another batch in the file", written(CONFIG, _EXPORTS.replace("GBS=8", "GBS=16")), "config.differs"),
        ("other steps, YAML", _configured("c.yaml", "trainer:\n  max_steps: 600\n"), "config.differs"),
        ("other parallelism, JSON", _configured("c.json", _JSON), "config.differs"),
        ("another micro batch, TOML", _configured("c.toml", "[t]\nmicro_batch_size = 2\n"), "config.differs"),
        ("another rate, gin", _configured("c.gin", "adam.learning_rate = 6e-5\n"), "config.differs"),
        ("a broken YAML file", _configured("c.yaml", "a: [1\n"), "config.unread"),
        ("the file is of another benchmark", _moved, "config.missing"),
        (
            "one log names another file",
            replace(LORA, "config_MI355X", "config_MI300X", slice(3, 4)),
            "config.missing",
        ),
        ("compiled files", written(f"{CODE}/build/a.o", b"\x7fELF"), "tree.compiled"),
        ("an archive", written(f"{CODE}/data.tar.gz", b"x"), "tree.archive"),
        ("a cache", written(f"{CODE}/__pycache__/a.pyc", b"x"), "tree.cache"),
        ("power at 0.5 Hz", _powered(step=2000), "power.rate"),
        ("thirty seconds without a reading", _hole, "power.rate"),
        ("the meter starts late", _powered(late=30), "power.coverage"),
        ("the meter stops early", _powered(early=60), "power.coverage"),
        ("the meter's clock is five hours off", _powered(shift=5 * 3_600_000), "power.clock"),
        ("kilowatts for watts", _powered(watts=7), "power.watts"),
        ("an efficiency above one", _edit_power('"value": 0.94', '"value": 1.06'), "power.efficiency"),
        ("no start of the measurement", _edit_power("power_measurement_start", "power_start"), "power.start"),
        ("power files numbered from one", _renamed_power, "power.files"),
        ("one node's log for two", _second_node, "power.copies"),
        (
            "a run without power logs",
            lambda root: shutil.rmtree(root / SMALL / "power/result_3"),
            "power.files",
        ),
        ("two runs in a log", _two_runs),
        ("a gap in the numbers of runs", _gap),
        ("one run twice", _copied, "tree.duplicate"),
        ("nine runs of ten", lambda root: (root / LORA / "result_9.txt").unlink(), "tree.run-count"),
        ("ten logs alike but for the seed", _alike),
        ("one seed for all", replace(LORA, r'("key": "seed", "value": )\d+', r"\g<1>7"), "tree.seed"),
        (
            "a seed that is no whole number",
            replace(LORA, r'("key": "seed", "value": \d+)', r"\1.5"),
            "seed.whole",
        ),
        ("all evaluations but the last left out", _last_evaluation_alone),
        ("half a score by scaling.json", written(f"{LORA}/scaling.json", '{"scaling_factor": 0.5}')),
        ("a scaling.json of text", written(f"{LORA}/scaling.json", '{"scaling_factor": "1.1"}')),
        ("one evaluation with two values", _contradicted),
        ("a clip norm that the text fixes", replace(LORA, r'(clip_norm", "value": )0.3', r"\g<1>0.4")),
        (
            "an end rate that the text fixes",
            replace(SMALL, r'(opt_end_learning_rate", "value": )8e-05', r"\g<1>1e-06"),
        ),
        (
            "another batch in one run",
            replace(LORA, r'(batch_size", "value": )8', r"\g<1>16", slice(0, 1)),
            "tree.rcp",
        ),
        (
            "the target is missed",
            replace(LORA, r'(eval_accuracy", "value": )0.92', r"\g<1>0.93"),
            "tree.score",
        ),
        ("a log in UTF-16", _utf16),
        ("times in seconds", _seconds),
        (
            "an invisible character in the system's name",
            described("system_name", "MI350X\u200b_EPYC_9575F_primus"),
        ),
        ("another submitter in the description", described("submitter", "Other")),
        (
            "no description",
            lambda root: (root / "AMD/systems/MI350X_EPYC_9575F_primus.json").unlink(),
            "tree.system-missing",
        ),
    )  # fmt: skip
)
