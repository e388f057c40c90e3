"""Alters copies of the v6.0 tree: each row of the tables is a fault that a submitter makes, or somebody who cheats.

`base` completes the tree first, because its configuration files are names alone, and leaves out what no row alters.
"""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from compliance.submission.runs import read_run

Change = Callable[[Path], object]
LORA = "AMD/results/MI350X_EPYC_9575F_primus/llama2_70b_lora"
SMALL = "MiTAC/results/MI325X_1node/llama31_8b"
CODE = "AMD/benchmarks/llama2_70b_lora/implementations/MI350X_EPYC_9575F_primus"
CONFIG = f"{CODE}/config_MI355X_1x8x1.sh"
_SYSTEM = "AMD/systems/MI350X_EPYC_9575F_primus.json"
_EXPORTS = (
    "export LR=0.0006 MBS=1 TP=1 PP=1 CP=1 EP=1\nexport MAX_STEPS=550 GBS=8 GRADIENT_ACCUMULATION_STEPS=1\n"
)
_ALL, _FIRST, _HOUR = slice(None), slice(0, 1), 3_600_000


class Alteration(NamedTuple):
    """`rule`: the rule that should speak, "" if any may; `org`: the submitter whose folder is altered."""

    name: str
    change: Change
    rule: str = ""
    org: str = "AMD"


def base(root: Path) -> None:
    """Gives the lora entry the configuration that its logs name, and power logs of a sound kind."""
    (root / CONFIG).write_text(_EXPORTS)
    (root / CODE / "run_and_time.sh").write_text("#!/bin/bash\n")
    (root / _SYSTEM).with_name("8xMI325X_EPYC_9575F_pytorch.json").unlink()
    for folder in ("results/8xMI325X_EPYC_9575F_pytorch", "benchmarks/flux1"):
        shutil.rmtree(root / "AMD" / folder)
    for log in logs(root, SMALL):
        target = log.parent / "power" / log.stem / "node_0.txt"
        target.parent.mkdir(parents=True)
    _powered()(root)


def logs(root: Path, folder: str = LORA) -> list[Path]:
    """Returns the logs of a folder of runs, sorted by name."""
    return sorted((root / folder).glob("result_*.txt"))


# ------------------------------------------------------------------------------------------------ what a row may do


def replace(pattern: str, new: str, which: slice = _ALL, folder: str = LORA) -> Change:
    """Replaces a pattern in some logs, as bytes: text would change the ends of lines."""

    def change(root: Path) -> None:
        for log in logs(root, folder)[which]:
            log.write_bytes(re.sub(pattern.encode(), new.encode(), log.read_bytes()))

    return change


def value(key: str, text: str, which: slice = _ALL, folder: str = LORA) -> Change:
    """Gives all records of a key another value."""
    new = text.replace("\\", "\\\\")
    return replace(rf'("key": "{key}", "value": ).*?(?=, "metadata")', rf"\g<1>{new}", which, folder)


def _lines(edit: Callable[[list[bytes]], list[bytes]], which: slice = _ALL) -> Change:
    def change(root: Path) -> None:
        for log in logs(root)[which]:
            log.write_bytes(b"".join(edit(log.read_bytes().splitlines(keepends=True))))

    return change


def _on(key: str, edit: Callable[[bytes], bytes], which: slice = _ALL) -> Change:
    """Edits each line of a key."""
    named = f'"key": "{key}"'.encode()
    return _lines(lambda lines: [edit(line) if named in line else line for line in lines], which)


def _without(key: str) -> Change:
    return _on(key, lambda line: b"")


def _again(key: str, text: str) -> Change:
    """Repeats the records of a key with another value."""
    return _on(
        key, lambda line: line + re.sub(rb'("value": ).*?(?=, "metadata")', rb"\g<1>" + text.encode(), line)
    )


def _metadata(key: str, name: str, text: str) -> Change:
    new = rb'"%s": %s' % (name.encode(), text.encode())
    return _on(key, lambda line: re.sub(rb'"%s": [^,}]+' % name.encode(), new, line))


def _time(key: str, edit: Callable[[int], object], which: slice = _ALL) -> Change:
    """Edits the times of a key's records (of all for "")."""

    def timed(line: bytes) -> bytes:
        return re.sub(rb'(?<="time_ms": )\d+', lambda match: str(edit(int(match[0]))).encode(), line)

    return _on(key, timed, which) if key else _lines(lambda lines: [timed(line) for line in lines], which)


def written(name: str, content: str | bytes) -> Change:
    """Writes a file."""

    def change(root: Path) -> None:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content if isinstance(content, bytes) else content.encode())

    return change


def _rewritten(name: str, edit: Callable[[str], str], encoding: str = "utf-8") -> Change:
    return lambda root: (root / name).write_text(edit((root / name).read_text()), encoding)


def _moved(old: str, new: str) -> Change:
    def change(root: Path) -> None:
        (root / new).parent.mkdir(parents=True, exist_ok=True)
        (root / old).rename(root / new)

    return change


def _gone(name: str) -> Change:
    return lambda root: shutil.rmtree(root / name) if (root / name).is_dir() else (root / name).unlink()


def described(field: str, new: object) -> Change:
    """Gives a field of the description another value; None leaves it out."""

    def change(root: Path) -> None:
        content = json.loads((root / _SYSTEM).read_text()) | {field: new}
        kept = {name: one for name, one in content.items() if one is not None}
        (root / _SYSTEM).write_text(json.dumps(kept))

    return change


def _configured(name: str, content: str) -> Change:
    def change(root: Path) -> None:
        replace("config_MI355X_1x8x1.sh", name)(root)
        (root / CONFIG).unlink()
        written(f"{CODE}/{name}", content)(root)

    return change


# -------------------------------------------------------------------------------------------------- power logs


def power(start: int, stop: int, watts: float = 7000, step: int = 1000, shift: int = 0, seed: int = 0) -> str:
    """Returns the text of a node's power log around a run (ms)."""

    def line(key: str, number: object, time: int) -> str:
        return ":::MLLOG " + json.dumps(
            {"namespace": "", "time_ms": time + shift, "event_type": "POINT_IN_TIME", "key": key, "value": number,
             "metadata": {"file": "meter.py", "lineno": 1}}
        )  # fmt: skip

    times = range(start - 5000 + step, stop + 5000, step)
    readings = [
        line("power_reading", watts + (37 * n + 11 * seed) % 200, time) for n, time in enumerate(times)
    ]
    first = [line("power_measurement_start", None, start - 5000), line("conversion_eff", 0.94, start - 5000)]
    return "\n".join([*first, *readings, line("power_measurement_stop", None, stop + 5000)]) + "\n"


def _powered(late: int = 0, early: int = 0, **changes: int) -> Change:
    """Writes the power logs of all runs, from `late` seconds after the start to `early` seconds before the end."""

    def change(root: Path) -> None:
        for index, log in enumerate(logs(root, SMALL)):
            run = read_run(log)
            start, stop = int(run.run_start), int(run.run_stop or run.run_start + 600_000)
            text = power(start + 1000 * late, stop - 1000 * early, **{"seed": index, **changes})
            (log.parent / "power" / log.stem / "node_0.txt").write_text(text)

    return change


def _meters(edit: Callable[[Path], object]) -> Change:
    """Does something to each power log."""
    return lambda root: [edit(path) for path in sorted((root / SMALL / "power").glob("*/node_0.txt"))]


def _reworded(pattern: str, new: str) -> Change:
    return _meters(lambda path: path.write_text(re.sub(pattern, new, path.read_text())))


def _hole(path: Path) -> None:
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:100] + lines[130:]))


# ------------------------------------------------------------------------------------------------ faults of their own


def _copied(edit: Callable[[bytes, int], bytes], count: int = 10) -> Change:
    """Makes the first logs edited copies of the first one."""

    def change(root: Path) -> None:
        text = logs(root)[0].read_bytes()
        for index, log in enumerate(logs(root)[:count]):
            log.write_bytes(edit(text, index))

    return change


def _seeded(text: bytes, index: int) -> bytes:
    return re.sub(rb'("key": "seed", "value": )\d+', rb"\g<1>%d" % (100 + index), text)


def _jittered(text: bytes, index: int) -> bytes:
    """Another seed, another day, and results and lengths that differ by a hundred-thousandth."""
    text = re.sub(rb"0\.9\d{8,}", lambda match: b"%.12f" % (float(match[0]) * (1 + index * 1e-5)), text)
    zero, day = 1_778_521_600_000, 86_400_000 * index

    def later(match: re.Match) -> bytes:
        return b"%d" % (zero + day + (int(match[0]) - zero) * (1 + index * 1e-5))

    return re.sub(rb'(?<="time_ms": )\d+', later, _seeded(text, index))


def _last_evaluation_alone(lines: list[bytes]) -> list[bytes]:
    evaluations = [n for n, line in enumerate(lines) if re.search(rb'"eval_(start|stop|accuracy)"', line)]
    last = max(n for n in evaluations if b'"eval_start"' in lines[n])
    return [line for n, line in enumerate(lines) if n not in evaluations or n >= last]


def _linked(root: Path) -> None:
    logs(root)[0].unlink()
    os.symlink("result_1.txt", root / LORA / "result_0.txt")


def _two_runs(root: Path) -> None:
    first, second = logs(root)[:2]
    first.write_bytes(first.read_bytes() + second.read_bytes())


# ---------------------------------------------------------------------------------------------------- the tables

# (key, value as JSON, rule): the key has this value in every log.
_VALUES = (
    ("submission_org", "null", "submission_org.value"), ("submission_org", '"Other"', "tree.organisation"),
    ("submission_org", '"SUBMISSION_ORG_PLACEHOLDER"', "tree.placeholder"),
    ("submission_org", '"AMD\\u200b"', "name.hidden"), ("submission_platform", '""', ""),
    ("submission_platform", '"${SYSTEM}"', "tree.placeholder"), ("submission_division", '"open"', "tree.division"),
    ("submission_division", '"close"', "submission_division.value"), ("submission_status", '"cloud"', "tree.status"),
    ("submission_status", '"soon"', ""), ("submission_benchmark", '"llama31_8b"', "tree.benchmark"),
    ("submission_benchmark", '"llama2"', "submission_benchmark.value"), ("cache_clear", "false", "cache_clear.false"),
    ("cache_clear", "null", ""), ("global_batch_size", "null", ""), ("global_batch_size", "-8", ""),
    ("global_batch_size", '"8"', ""), ("global_batch_size", "NaN", ""), ("global_batch_size", "128", "tree.rcp"),
    ("gradient_accumulation_steps", "3", "tree.batch"), ("gradient_accumulation_steps", "0", ""),
    ("train_samples", "100", "tree.samples"), ("train_samples", "null", ""), ("eval_samples", "17.5", ""),
    ("eval_samples", "true", ""), ("seed", "7", "tree.seed"), ("seed", "13.5", "seed.whole"),
    ("seed", '"x"', "tree.seed"), ("opt_name", '"sgd"', ""), ("opt_base_learning_rate", "-0.0006", "tree.value"),
    ("opt_base_learning_rate", "NaN", "tree.value"), ("opt_base_learning_rate", '"6e-4"', ""),
    ("opt_base_learning_rate", "null", ""), ("opt_adamw_weight_decay", "0.01", "written.value"),
    ("opt_gradient_clip_norm", "0.4", "written.value"), ("opt_learning_rate_training_steps", "0", ""),
    ("opt_learning_rate_warmup_factor", "null", ""), ("lora_rank", "8", "lora_rank.value"),
    ("lora_alpha", "64", "written.value"), ("max_sequence_length", "4096", "written.value"),
    ("eval_accuracy", "null", ""), ("eval_accuracy", '"0.92"', ""), ("eval_accuracy", "true", ""),
    ("eval_accuracy", "NaN", "eval_accuracy.target"), ("eval_accuracy", "-Infinity", ""),
    ("eval_accuracy", "[0.92]", ""), ("eval_accuracy", "-0.5", ""), ("eval_accuracy", "92.3", "eval_accuracy.target"),
)  # fmt: skip
# No log has a record of the key.
_MISSING = (
    "submission_org", "submission_platform", "submission_status", "submission_benchmark", "submission_division",
    "cache_clear", "init_start", "init_stop", "run_start", "run_stop", "eval_start", "eval_stop", "eval_accuracy",
    "block_start", "block_stop", "global_batch_size", "train_samples", "eval_samples", "seed", "opt_name",
    "opt_base_learning_rate", "opt_gradient_clip_norm", "opt_adamw_weight_decay", "lora_rank", "lora_alpha",
    "gradient_accumulation_steps", "opt_learning_rate_training_steps",
)  # fmt: skip
# (key, another value): the log has both.
_TWICE = (
    ("global_batch_size", "16"), ("opt_base_learning_rate", "0.0005"), ("submission_org", '"Other"'),
    ("lora_rank", "8"), ("eval_accuracy", "1.7"), ("train_samples", "100"), ("seed", "1"),
)  # fmt: skip
# `samples_count` of each result.
_PLACES = ("null", '"3072"', "[3072]", "true", "NaN", "Infinity", "-1", "1e18", "7", "1536")


def _rows() -> Iterator[tuple]:
    for key, text, rule in _VALUES:
        yield f"{key} is {text}", value(key, text), rule
    for key in _MISSING:
        yield f"no {key}", _without(key)
    for key, text in _TWICE:
        yield f"{key} again, as {text}", _again(key, text)
    for text in _PLACES:
        yield f"samples_count of the results is {text}", _metadata("eval_accuracy", "samples_count", text)
    yield from _OTHERS
    for row in _POWER:
        yield *row, *[""] * (3 - len(row)), "MiTAC"


_OTHERS = (
    ("another batch in one run", value("global_batch_size", "16", _FIRST), "tree.rcp"),
    ("another rate in one run", value("opt_base_learning_rate", "0.0007", _FIRST), "tree.settings"),
    ("the target is missed", replace(r'(eval_accuracy", "value": )0\.92', r"\g<1>0.93"), "tree.score"),
    ("two runs are aborted", _metadata("run_stop", "status", '"aborted"'), "tree.score"),
    ("success without the target", replace(r'"value": 0\.9\d+', '"value": 1.1', slice(0, 2)), "run_stop.status"),
    ("converged in half the samples", _metadata("eval_accuracy", "samples_count", "1024"), "tree.rcp"),
    ("all evaluations but the last left out", _lines(_last_evaluation_alone)),
    ("two runs in a log", _two_runs, "log.two-runs"),
    ("one run twice", _copied(lambda text, index: text, 2), "tree.duplicate"),
    ("ten logs alike but for the seed", _copied(_seeded), "tree.alike"),
    ("a log is another one with a jitter", _copied(_jittered, 2), "tree.alike"),
    ("runs that begin at one moment", _time("run_start", lambda time: 1_778_522_082_545), ""),
    ("nine runs of ten", _gone(f"{LORA}/result_9.txt"), "tree.run-count"),
    ("a gap in the numbers of runs", _moved(f"{LORA}/result_4.txt", f"{LORA}/result_14.txt"), "tree.gap"),
    ("logs in a deeper folder", _moved(LORA, f"{LORA}_/llama2_70b_lora")),
    ("a resumed run", replace('"key": "target_accuracy"', '"key": "resumed_from_step"'), "resumed_from_step"),
    ("a smoke run", replace('"key": "target_accuracy"', '"key": "smoke_run"'), "smoke_run"),
    ("run_stop before run_start", _time("run_stop", lambda time: time - _HOUR), "run.reversed"),
    ("init_stop before init_start", _time("init_stop", lambda time: time - _HOUR), "init.reversed"),
    ("run_start before init_stop", _time("run_start", lambda time: time - 100_000), "run.before-init"),
    ("an initialization of two hours", _time("init_start", lambda time: time - 2 * _HOUR)),
    ("times in seconds", _time("", lambda time: time // 1000, _FIRST), "time.seconds"),
    ("times in microseconds", _time("", lambda time: time * 1000), "time.micro"),
    ("a time that is NaN", _time("run_stop", lambda time: "NaN"), "line-field"),
    ("runs of 0.3 s", _time("", lambda time: 1_778_522_000_000 + (time - 1_778_522_000_000) // 2000), "tree.short"),
    ("lines out of order", _lines(lambda lines: [*lines[20:30], *lines[:20], *lines[30:]]), "line.order"),
    ("a line cut off", _on("run_stop", lambda line: line[:-20] + b"\n"), "line-json"),
    ("an empty log", _lines(lambda lines: [], _FIRST), "no-records"),
    ("no metadata", replace(r', "metadata": \{[^}]*\}', ""), "line-field"),
    ("two records in a line", _on("run_start", lambda line: line.strip() + line), "line-several-records"),
    ("a key of a record twice", replace('("lora_rank", )', r'\g<1>"value": 8, '), "line-key-twice"),
    ("a log in the form of v0.6", replace(":::MLLOG", ":::MLL")),
    ("a log in UTF-16", _rewritten(f"{LORA}/result_0.txt", str, "utf-16"), "no-records"),
    ("a misspelt key", replace("eval_accuracy", "eval_acuracy"), "eval_accuracy.occurs"),
    ("an evaluation that did not begin there", _metadata("eval_start", "samples_count", "11"), "eval.place"),
    ("results is misspelt", _moved("AMD/results", "AMD/Results")),
    ("the benchmark's folder is misspelt", _moved(LORA, LORA[:-1]), ""),
    ("the folder of another benchmark", _moved(LORA, LORA.replace("llama2_70b_lora", "llama31_8b")), "tree.benchmark"),
    ("the folder of another system", _moved(LORA.rpartition("/")[0], "AMD/results/DGX"), "tree.system-missing"),
    ("a level of folders is missing", _moved(LORA, "AMD/results/runs"), "tree.layout"),
    ("a name with a space", written("AMD/results/my notes.txt", "x"), "tree.name"),
    ("a broken link", lambda root: os.symlink("x", root / "AMD/benchmarks/link"), "tree.link"),
    ("a log is a link", _linked, "not-checked"),
    ("a file of 60 MB", written(f"{CODE}/weights.txt", b"x" * (60 << 20)), "tree.size"),
    ("compiled files", written(f"{CODE}/build/a.o", b"\x7fELF"), "tree.compiled"),
    ("an archive", written(f"{CODE}/data.tar.gz", b"x"), "tree.archive"),
    ("a cache", written(f"{CODE}/__pycache__/a.pyc", b"x"), "tree.cache"),
    ("no code", _gone("AMD/benchmarks"), "tree.file-missing"),
    ("no README", _gone(f"{CODE}/README.md"), "tree.file-missing"),
    ("half a score by scaling.json", written(f"{LORA}/scaling.json", '{"scaling_factor": 0.5}'), "tree.scaling"),
    ("a scaling.json of text", written(f"{LORA}/scaling.json", '{"scaling_factor": "1.1"}'), "tree.scaling"),
    ("a scaling.json of NaN", written(f"{LORA}/scaling.json", '{"scaling_factor": NaN}'), "tree.scaling"),
    ("no description", _gone(_SYSTEM), "tree.system-missing"),
    ("a description that is no JSON", written(_SYSTEM, "{"), "system.json"),
    ("a byte-order mark", _rewritten(_SYSTEM, lambda text: "\ufeff" + text), "system.bom"),
    ("a field twice", _rewritten(_SYSTEM, lambda text: text.replace("{", '{"division": "open",', 1)), "system.twice"),
    ("another broken description", written("AMD/systems/other.json", "{"), "system.json"),
    ("the description is open", described("division", "open"), "tree.division"),
    ("the description has no division", described("division", None), "system.field"),
    ("the description says cloud", described("status", "Available cloud"), "tree.status"),
    ("another submitter in the description", described("submitter", "Other"), "tree.organisation"),
    ("another system in the description", described("system_name", "MI325X_EPYC_9575F_primus"), "tree.system"),
    ("an invisible character in the name", described("system_name", "MI350X\u200b_EPYC_9575F_primus"), "name.hidden"),
    ("no accelerators", described("accelerators_per_node", "none"), "system.count"),
    ("half of the accelerators", described("accelerators_per_node", "4"), ""),
    ("the named configuration is not there", _gone(CONFIG), "config.missing"),
    ("another rate in the file", written(CONFIG, _EXPORTS.replace("0.0006", "0.0005")), "config.differs"),
    ("other steps, YAML", _configured("c.yaml", "trainer:\n  max_steps: 600\n"), "config.differs"),
    ("another rate, gin", _configured("c.gin", "adam.learning_rate = 6e-5\n"), "config.differs"),
    ("a broken YAML file", _configured("c.yaml", "a: [1\n"), "config.unread"),
    ("the file is of another benchmark", _moved(CONFIG, "AMD/benchmarks/flux1/" + Path(CONFIG).name), "config.missing"),
    ("one log names another file", replace("config_MI355X", "config_MI300X", slice(3, 4)), "config.missing"),
)  # fmt: skip
_POWER = (
    ("an end rate that the text fixes", value("opt_end_learning_rate", "1e-06", folder=SMALL), "written.value"),
    ("power at 0.5 Hz", _powered(step=2000), "power.rate"),
    ("thirty seconds without a reading", _meters(_hole), "power.rate"),
    ("the meter starts late", _powered(late=30), "power.coverage"),
    ("the meter stops early", _powered(early=60), "power.coverage"),
    ("the meter's clock is five hours off", _powered(shift=5 * _HOUR), "power.clock"),
    ("kilowatts for watts", _powered(watts=7), "power.watts"),
    ("an efficiency above one", _reworded('"value": 0.94', '"value": 1.06'), "power.efficiency"),
    ("no start of the measurement", _reworded("power_measurement_start", "power_start"), "power.start"),
    ("power files numbered from one", _meters(lambda path: path.rename(path.with_name("node_1.txt"))), "power.files"),
    ("one node's log for two", _meters(lambda path: shutil.copy(path, path.with_name("node_1.txt"))), "power.copies"),
    ("a run without power logs", _gone(f"{SMALL}/power/result_3"), "power.files"),
    ("an empty power log", _meters(lambda path: path.write_text("")), "power.coverage"),
)  # fmt: skip
TREES = tuple(Alteration(*row) for row in _rows())
