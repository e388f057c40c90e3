"""Tests the comparison of logs with the configuration files that they name, and advice about submitted code."""

import os
import threading
import time

import pytest

from compliance.code import advice, agreement, config_files, litter
from compliance.submission.tree import judge_tree
from tests.compliance import submission_trees
from tests.compliance.submission_trees import BENCHMARK, SYSTEM, record

LOGGED = {
    "global_batch_size": 32, "micro_batch_size": 2, "opt_base_learning_rate": 8e-4, "opt_end_learning_rate": 8e-5,
    "opt_learning_rate_warmup_steps": 128, "max_steps": 1_200_000, "tensor_parallelism": 1,
}  # fmt: skip
FILES = {
    "a.sh": """
# LR=9 of a comment
source $(dirname ${BASH_SOURCE[0]})/common.sh
: "${PRIMUS_GLOBAL_BATCH_SIZE:=32}"
export PRIMUS_LR=${LR_OF_RUN:-8e-4} MBS='2'
export MIN_LR=$(awk "BEGIN { print 1 }")
export MAX_STEPS=$((1200 * 1000)) TENSOR_MODEL_PARALLEL=$TP_OF_ALL
LR_WARMUP_STEPS=$((4096 / PRIMUS_GLOBAL_BATCH_SIZE)) ./run
""",
    "a.yaml": "modules:\n  trainer: {global_batch_size: 32, micro_batch_size: 2}\n  optimizer:\n    lr: 8e-4\n"
    "    min_lr: ${MIN:0.00008}\n    lr_warmup_iters: 128\n    train_iters: 1200000\n  tensor_model_parallel_size: 1\n",
    "a.json": '{"a": [{"global_batch_size": 32, "mbs": 2}], "lr": 8e-4, "lr_min": 8e-05, "warmup": 128,'
    ' "max_steps": 1200000, "tp": 1}',
    "a.toml": "[training]\nglobal_batch_size = 32\nmicro_batch_size = 2\nmax_steps = 1_200_000\n"
    "[optimizer]\nlr = 8e-4\nend_lr = 8e-5\n"
    "[lr_scheduler]\nwarmup_steps = 128\n[parallelism]\ntensor_parallel_degree = 1\n",
    "a.gin": "RATE = 8e-4\ntrain.global_batch_size = 32 # of all\ntrain.micro_batch_size = 2\n"
    "adam.learning_rate = %RATE\nadam.end_learning_rate = 8e-5\n"
    "adam.warmup_steps = 128\ntrain.max_steps = 1200000\nmesh.tp = 1\n",
}  # fmt: skip


def code_of(tmp_path, **files):
    """A folder of code of the benchmark; returns what `agreement.files` says of its parent."""
    place = tmp_path / "benchmarks" / "llama31_8b" / "implementations" / "sys"
    place.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (place / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return agreement.files(tmp_path / "benchmarks")


def answers(tmp_path, name, **changes):
    code = agreement.files(tmp_path / "benchmarks")
    found = agreement.compare({**LOGGED, **changes, "config_filename": name}, "llama31_8b", "sys", code)
    return {setting.name: setting.answer for setting in found.settings}


@pytest.mark.parametrize("name", FILES)
def test_every_kind_of_file_agrees_where_its_values_do(tmp_path, name):
    code_of(tmp_path, **{name: FILES[name], "common.sh": "export TP_OF_ALL=1 MIN_LR=5\n"})
    found = answers(tmp_path, name)
    # The end rate of the shell file is a program's output, and overrides that of the file it sources.
    same = dict.fromkeys(LOGGED, "same")
    assert found == (same | {"opt_end_learning_rate": "not found"} if name == "a.sh" else same)
    for key, value in LOGGED.items():
        if name != "a.sh" or key != "opt_end_learning_rate":
            assert answers(tmp_path, name, **{key: 3 * value})[key] == "different", key


def test_a_file_that_the_shell_file_names_fills_in_what_it_leaves_out(tmp_path):
    yaml = "global_batch_size: 64\nlr: ${PRIMUS_LR:1}\nmin_lr: 0.00008\nlr_warmup_iters: 128\n"
    code_of(
        tmp_path, **{"a.sh": "export EXP=/workspace/conf/a.yaml PRIMUS_LR=0.0008\nGBS=32\n", "a.yaml": yaml}
    )
    actual = answers(tmp_path, "a.sh")
    names = (
        "opt_base_learning_rate",
        "opt_end_learning_rate",
        "opt_learning_rate_warmup_steps",
        "global_batch_size",
    )
    assert [actual[name] for name in names] == ["same"] * 4 and actual["max_steps"] == "not found"


def test_a_file_of_the_name_in_the_system_s_folder_is_taken(tmp_path):
    code_of(tmp_path, **{"a.sh": "LR=0.0008\n"})
    for benchmark, folder in (("llama31_8b", "other"), ("flux1", "sys")):
        place = tmp_path / "benchmarks" / benchmark / folder
        place.mkdir(parents=True)
        (place / "a.sh").write_text("LR=5\n")
    assert answers(tmp_path, "../../conf/a.sh")["opt_base_learning_rate"] == "same"


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("a.yaml", "a: [1\n", "no YAML"),
        ("a.yaml", "a: !!python/object:os.system {}\n", "no YAML"),
        ("a.json", "{", "Expecting property name"),
        ("a.json", "[" * 200_000, "nested too deeply"),
        ("a.toml", "a = \n", "Invalid value"),
        ("a.sh", b"x" * (2 << 20), "more than 1048576 bytes"),
    ],
)  # fmt: skip
def test_a_broken_file_is_a_problem_and_no_traceback(tmp_path, name, content, problem):
    code = code_of(tmp_path, **{name: content})
    found = agreement.compare({"config_filename": name, "max_steps": 1}, "llama31_8b", "sys", code)
    assert problem in found.problem and found.settings == ()


def test_repeated_aliases_and_hostile_text_take_no_time(tmp_path):
    lines = ["a0: &a0 [1,1,1,1,1,1,1,1,1,1]"] + [
        f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)
    ]
    code_of(tmp_path, **{"a.yaml": "\n".join(lines), "a.sh": b"\xff\xfe" + b"A=${A:-${A:-${A}}}\n" * 2000})
    place = tmp_path / "benchmarks" / "llama31_8b" / "implementations" / "sys"
    assert config_files.read(place / "a.yaml") == {} and "lr" not in config_files.read(place / "a.sh")
    assert config_files.expanded("$((9**9**9))", {}) == "" and config_files.expanded("$((7/0))", {}) == ""
    (place / "link.sh").symlink_to("/etc/passwd")
    with pytest.raises(ValueError, match="symbolic link"):
        config_files.read(place / "link.sh")


HOSTILE = {
    "doubles.sh": "A=xx\n" + "A=$A$A\n" * 200 + "LR=1\n",
    "repeats.sh": "A=" + "x" * 9000 + "\n" + "B=$A\n" * 100_000,
    "many.sh": ("A=" + "x" * 9000 + "\nB=" + "$A" * 4000 + "\n") * 50,
    "word.sh": "x" * 900_000,
    "words.sh": ("x" * 9_900 + "\n") * 100,
    "sums.sh": ("A=$((" * 1900 + "\n") * 100,
    "defaults.sh": ("${A=" * 2400 + "\n") * 100,
    "open.sh": ("B=${" + "A" * 9_900 + "\n") * 100,
    "merges.yaml": "a0: &a0 {lr: 1}\n" + "".join(f"a{n}: &a{n}\n  <<: [*a{n - 1},*a{n - 1}]\n" for n in range(1, 40)),
    "aliases.yaml": "a: &a 1\nb: [" + "*a," * 2000 + "]\n",
    "deep.yaml": "[" * 5000,
    "deep.toml": "x=" + "[" * 50_000,
    "bool.yaml": "lr: !!bool nope\n",
    "long.toml": "x = 0x" + "f" * 10_000,
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_read_in_a_moment_or_is_a_problem(tmp_path, name):
    code = code_of(tmp_path, **{name: HOSTILE[name]})
    (path,) = code[name]
    began = time.process_time()
    found = agreement.compare({"config_filename": name, "max_steps": 1}, "llama31_8b", "sys", code)
    assert time.process_time() - began < 5
    unreadable = ("repeats.sh", "aliases.yaml", "deep.yaml", "deep.toml", "long.toml")
    assert bool(found.problem) == (name in unreadable), found.problem
    assert len(config_files.expanded("$A" * 3000, {"a": ["x" * 9000]})) == 0
    if name == "doubles.sh":
        assert config_files.read(path)["lr"] == ["1"]


def test_yaml_without_a_value_and_with_a_merge_says_what_it_did(tmp_path):
    code = code_of(tmp_path, **{"a.yaml": "base: &b {lr: 1}\nown: {<<: *b, gbs: 8, mbs: }\n"})
    assert config_files.read(code["a.yaml"][0]) == {"lr": ["1", "1"], "gbs": ["8"]}


# ------------------------------------------------------------------------------------------- in the check of a tree


def tree(tmp_path, ruleset="v6.0", named="run_a.sh", rate=4e-4, more="", **files):
    more_lines = [record("config_filename", named)] if named else []
    logs = [submission_trees.log(n, more=more_lines).replace("0.0004", str(rate)) + more for n in range(10)]
    org = submission_trees.tree(tmp_path, logs=logs, ruleset=ruleset)
    for name, text in files.items():
        place = org / "benchmarks" / BENCHMARK / SYSTEM / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(text if isinstance(text, bytes) else text.encode())
    return org


def found_in(org, prefix):
    return [one for one in judge_tree(org).findings if one.rule.startswith(prefix)]


@pytest.mark.parametrize("options", [{"ruleset": "v5.1"}, {"named": None}, {"run_a.sh": "LR=4e-4\nGBS=8\n"}])
def test_there_is_no_word_where_all_agrees_or_the_round_has_no_such_key(tmp_path, options):
    assert found_in(tree(tmp_path, **options), "config.") == []


def test_framework_logs_are_asked_for_from_6_1_on(tmp_path):
    lines = "".join(f"step {n} loss 2.5\n" for n in range(20))
    assert found_in(tree(tmp_path / "a", "v6.0"), "log.framework") == []
    (one,) = found_in(tree(tmp_path / "b", "v6.1"), "log.framework")
    assert one.severity == "advice" and "result_0.txt" in one.found and "6 more" in one.found
    assert found_in(tree(tmp_path / "c", "v6.1", more=lines), "log.framework") == []


def test_a_pipe_and_a_link_among_the_logs_are_left_out(tmp_path):
    org = tree(tmp_path, "v6.1", **{"run_a.sh": "LR=0.0005\n"})
    place = org / "results" / SYSTEM / BENCHMARK
    (place / "result_8.txt").rename(tmp_path / "result_8.txt")
    (place / "result_8.txt").symlink_to(tmp_path / "result_8.txt")
    (place / "result_9.txt").unlink()
    os.mkfifo(place / "result_9.txt")
    within = []
    checking = threading.Thread(target=lambda: within.extend(found_in(org, "")), daemon=True)
    checking.start()
    checking.join(30)
    assert not checking.is_alive(), "the check waits for the pipe"
    (one,) = (one for one in within if one.rule == "log.framework")
    assert "result_0.txt" in one.found and "4 more" in one.found
    for path in (place / "result_8.txt", place / "result_9.txt", place / "absent.txt"):
        assert advice.has_framework_log(path)


def test_linked_code_is_not_walked(tmp_path):
    org = tree(tmp_path, **{"run_a.sh": "LR=0.0005\n", "a.zip": "x"})
    assert {one.rule for one in advice.of_org(org, {}, "6.0.0")} == {"tree.archive"}
    (org / "benchmarks").rename(tmp_path / "elsewhere")
    (org / "benchmarks").symlink_to(tmp_path / "elsewhere")
    assert list(advice.of_org(org, {}, "6.0.0")) == [] and agreement.files(org / "benchmarks") == {}


def test_a_large_folder_of_code_ends_the_walk(tmp_path, monkeypatch):
    for name in "abcdef":
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.zip").write_text("x")
    walk, walked = os.walk, []

    def counted(top):
        for row in walk(top):
            walked.append(row[0])
            yield row

    monkeypatch.setattr(litter, "_MAX_FILES", 4)
    monkeypatch.setattr(litter.os, "walk", counted)
    (one,) = litter.of_code(tmp_path)
    assert len(walked) < 5 and one.found.endswith("x.zip, 0.0 MB")


def test_compiled_files_archives_and_caches_are_one_line_of_advice_each(tmp_path):
    files = {f"build/{n}.o": b"\x7fELF" for n in range(5)} | {
        "tool": b"\x7fELF\2", "data.tar.gz": b"x" * 10, "__pycache__/a.cpython-312.pyc": b"x", "script": b"#!/bin/sh\n",
    }  # fmt: skip
    org = tree(tmp_path, "v5.1", **files)
    actual = {one.rule: one for one in litter.of_code(org / "benchmarks")}
    assert set(actual) == {"tree.compiled", "tree.archive", "tree.cache"}
    assert actual["tree.compiled"].found.endswith("and 3 more, 0.0 MB")
    assert "data.tar.gz" in actual["tree.archive"].found
    assert "__pycache__" in actual["tree.cache"].found
    assert {one.rule for one in found_in(org, "tree.c")} == {"tree.compiled", "tree.cache"}


def test_advice_about_code_leaves_the_verdict_alone(tmp_path):
    clean, littered = (
        tree(tmp_path / "a", "v5.1"),
        tree(tmp_path / "b", "v5.1", **{"a.zip": "x", "b.pyc": "x"}),
    )
    first, second = (judge_tree(org, log_checker=submission_trees.verdicts) for org in (clean, littered))
    assert first.verdict == second.verdict and first.verdict.answer == "go"
