"""Tests the packager: the rules' tree, accepted by the stock tools; the same bytes each time; refusals."""

import argparse
import hashlib
import json
import os
import subprocess
import tarfile

import pytest

import systems
from common.errors import UserError
from compliance.api import check
from compliance.packaging import own_runs, package, package_output
from compliance.packaging.own_runs import IMPLEMENTATION
from tests.compliance import result_logs

BENCHMARKS = list(result_logs.CLOSED)
SYSTEM = "dgx-1"


def head(source):
    return subprocess.check_output(["git", "-C", source, "rev-parse", "HEAD"], text=True).strip()


@pytest.fixture
def results(tmp_path, source):
    """Returns make(*benchmarks), which writes a folder of results of the checkout's commit."""

    def make(*benchmarks, folder="results", change=None, **options):
        description = {**systems.load(SYSTEM), "submitter": ""}
        options = {"system": SYSTEM, "description": description, **options}
        for benchmark in benchmarks:
            place = result_logs.write_results(tmp_path / folder, benchmark, **options)
            edit(place / "run.json", lambda record: record["git"].update(commit=head(source)))
            if change:
                edit(place / "run.json", change)
        return tmp_path / folder

    return make


def edit(path, change):
    content = json.loads(path.read_text())
    for record in content["runs"].values():
        change(record)
    path.write_text(json.dumps(content))


def call(results, output, source, *more):
    return call_for(SYSTEM, results, output, source, *more)


def call_for(system, results, output, source, *more):
    words = [results, "--org", "Example", "--system", system, "--source", source, *more]
    return run(*words, *(["-o", output] if output else []))


def run(*words):
    parser = argparse.ArgumentParser()
    package.add_arguments(parser)
    return package.run(parser.parse_args([str(word) for word in words]))


def test_an_installed_package_asks_for_the_checkout(tmp_path, results, monkeypatch):
    monkeypatch.setattr(own_runs, "INSTALLED", True)
    with pytest.raises(UserError, match="--source: not given"):
        run(results("resnet"), "--org", "Example", "--system", SYSTEM, "-o", tmp_path / "out")


def files(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def state(folder):
    """Every path in the folder with its kind, times and content, to show that inputs stay unchanged."""
    return {
        path: (path.lstat().st_mode, path.lstat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in folder.rglob("*")
    }


def test_the_tree_of_the_rules(tmp_path, results, source):
    folder = results("resnet")
    before = state(folder)
    assert call(folder, tmp_path / "out", source) == 0
    code = "Example/benchmarks/resnet/implementations/tensorflow"
    scripts = f"Example/benchmarks/resnet/{SYSTEM}"
    copied = (
        "LICENSE common/__init__.py compliance/rules/0.7.0.json pyproject.toml tools/requirements/dev.lock"
    )
    copied += (
        " resnet/README.md resnet/config.py resnet/init_datasets.sh resnet/run_and_time.sh resnet/setup.sh"
    )
    assert files(tmp_path / "out") == {
        *(f"Example/results/{SYSTEM}/resnet/result_{i}.txt" for i in range(5)),
        f"Example/systems/{SYSTEM}.json",
        *(f"{code}/{name}" for name in [*copied.split(), "systems/dgx-1.json"]),
        *(
            f"{scripts}/{name}"
            for name in ("README.md", *package_output.SCRIPTS, f"{SYSTEM}_tensorflow.json")
        ),
        "Example.tar",
        "SHA256SUMS",
    }
    assert state(folder) == before
    described = json.loads((tmp_path / "out" / f"Example/systems/{SYSTEM}.json").read_text())
    own_fields = [described[name] for name in ("submitter", "division", "status")]
    assert own_fields == ["Example", "closed", "onprem"]
    implementation = json.loads((tmp_path / "out" / scripts / f"{SYSTEM}_tensorflow.json").read_text())
    assert tuple(implementation) == IMPLEMENTATION
    log = f"{SYSTEM}/resnet/result_3.txt"
    assert (tmp_path / "out" / "Example" / "results" / log).read_bytes() == (folder / log).read_bytes()
    assert not list(tmp_path.glob(".*"))


def test_every_benchmark_is_accepted_with_its_description(tmp_path, results, source):
    """tests/compliance/test_closed_presets.py asks the stock package checker."""
    from mlperf_logging.system_desc_checker import system_desc_checker

    assert call(results(*BENCHMARKS), tmp_path / "out", source) == 0
    org = tmp_path / "out" / "Example"
    assert check([org], packaging=True).findings == []
    described = str(org / "systems" / f"{SYSTEM}.json")
    for ruleset in ("0.7.0", "1.0.0"):
        assert system_desc_checker.check_system_desc(described, "training", ruleset)[0]


def test_twice_gives_the_same_bytes(tmp_path, results, source):
    for number, folder in enumerate(("one", "two")):
        place = results("resnet", folder=folder)
        for path in place.rglob("*"):
            os.utime(path, (1e9 + number, 1e9 + number))
        assert call(place, tmp_path / f"out-{folder}", source) == 0
    for name in ("Example.tar", "SHA256SUMS"):
        assert (tmp_path / "out-one" / name).read_bytes() == (tmp_path / "out-two" / name).read_bytes()
    with tarfile.open(tmp_path / "out-one" / "Example.tar") as tar:
        members = tar.getmembers()
    assert [member.name for member in members] == sorted(member.name for member in members)
    assert {(m.uid, m.gid, m.uname, m.gname, m.mtime) for m in members} == {(0, 0, "", "", 315532800)}
    assert {m.mode for m in members if m.name.endswith(".sh")} == {0o755}


def test_the_manifest_is_that_of_sha256sum_and_the_scripts_call_the_code_that_ran(tmp_path, results, source):
    assert call(results("resnet"), tmp_path / "out", source) == 0
    lines = (tmp_path / "out" / "SHA256SUMS").read_text().splitlines()
    digests = dict(reversed(line.split("  ", 1)) for line in lines)
    assert set(digests) == files(tmp_path / "out") - {"SHA256SUMS"}
    for name, digest in digests.items():
        assert hashlib.sha256((tmp_path / "out" / name).read_bytes()).hexdigest() == digest
    script = tmp_path / "out" / f"Example/benchmarks/resnet/{SYSTEM}/run_and_time.sh"
    done = subprocess.run([script, "--seed=3"], capture_output=True, text=True, check=True)
    assert done.stdout == f"{SYSTEM} --seed=3\n"


# ------------------------------------------------------------------------------------------------ refusals


def refused(results, output, source, *more, match):
    before = state(results)
    with pytest.raises(UserError, match=match):
        call(results, output, source, *more)
    assert state(results) == before
    assert not output.exists() and not list(output.parent.glob(".*"))


@pytest.mark.parametrize("change", [None, lambda record: record.update(smoke_run=False)])
def test_smoke_runs_are_refused_though_run_json_hides_them(tmp_path, results, source, change):
    folder = results("resnet", smoke=True, count=5, change=change)
    refused(folder, tmp_path / "out", source, match="smoke run")


def test_a_practice_tree_says_so_in_every_path(tmp_path, results, source, capsys):
    folder = results("resnet", smoke=True, count=1, status="aborted")
    assert call(folder, tmp_path / "out", source, "--smoke") == 0
    assert all("SMOKE" in name for name in files(tmp_path / "out") - {"SHA256SUMS"})
    assert "this is a practice tree" in capsys.readouterr().out
    with tarfile.open(tmp_path / "out" / "SMOKE-Example.tar") as tar:
        assert all("SMOKE" in name for name in tar.getnames())


@pytest.mark.parametrize(
    "change",
    [
        ('"lars_opt_end_learning_rate", "value": 0.0001', '"lars_opt_end_learning_rate", "value": 0.1'),
        ('"train_samples", "value": 1281167', '"train_samples", "value": 64'),
    ],
)
def test_any_finding_refuses_and_leaves_nothing(tmp_path, results, source, capsys, change):
    folder = results("resnet")
    for path in folder.rglob("result_*.txt"):
        rewrite(path, path.read_text().replace(*change))
    assert call(folder, tmp_path / "out", source) == 1
    errors = capsys.readouterr().err
    assert "Refused" in errors and f"Example/results/{SYSTEM}/resnet" in errors and ".partial" not in errors
    assert not (tmp_path / "out").exists() and not list(tmp_path.glob(".*"))


def test_one_run_that_did_not_converge_is_dropped(tmp_path, results, source, capsys):
    folder = results("resnet")
    rewrite(folder / SYSTEM / "resnet" / "result_2.txt", result_logs.log("resnet", 2, status="aborted"))
    assert call(folder, tmp_path / "out", source) == 0
    assert "result_2.txt: does not count; the score drops it" in capsys.readouterr().out
    rewrite(folder / SYSTEM / "resnet" / "result_3.txt", result_logs.log("resnet", 3, status="aborted"))
    assert call(folder, tmp_path / "two", source) == 1


def test_a_log_that_cannot_be_checked_is_not_dropped(tmp_path, results, source, capsys):
    folder = results("resnet")
    path = folder / SYSTEM / "resnet" / "result_2.txt"
    lines = path.read_text().splitlines(keepends=True)
    rewrite(path, "".join(line for line in lines if "submission_division" not in line))
    assert call(folder, tmp_path / "out", source) == 1
    assert "result_2.txt" in capsys.readouterr().err and not (tmp_path / "out").exists()


def rewrite(path, text):
    """Changes a log and its record in run.json."""
    path.write_text(text)
    digest = hashlib.sha256(text.encode()).hexdigest()
    content = json.loads((path.parent / "run.json").read_text())
    content["runs"][path.name]["files"] = {path.name: digest}
    (path.parent / "run.json").write_text(json.dumps(content))


def test_a_log_changed_after_its_run_is_refused(tmp_path, results, source):
    folder = results("resnet")
    log = folder / SYSTEM / "resnet" / "result_2.txt"
    log.write_text(log.read_text().replace("1002", "1003"))
    refused(folder, tmp_path / "out", source, match="result_2.txt: is not the file that its run wrote")


def test_a_log_without_a_record_and_a_record_without_a_log_are_refused(tmp_path, results, source):
    folder = results("resnet")
    (folder / SYSTEM / "resnet" / "result_7.txt").write_text(result_logs.log("resnet", 7))
    refused(folder, tmp_path / "out", source, match="result_7.txt: has no record")
    (folder / SYSTEM / "resnet" / "result_7.txt").rename(folder / "aside.txt")
    (folder / SYSTEM / "resnet" / "result_1.txt").unlink()
    refused(folder, tmp_path / "out", source, match="result_1.txt: is in run.json but not here")


@pytest.mark.parametrize("name", ["resnet/result_0.txt", "resnet/run.json", "resnet", ""])
def test_links_are_not_followed(tmp_path, results, source, name):
    folder = results("resnet")
    path, secret = folder / SYSTEM / name, tmp_path / "secret"
    path.rename(secret)
    path.symlink_to(secret)
    refused(folder, tmp_path / "out", source, match="symbolic link")


def test_a_link_in_the_code_is_refused(tmp_path, results, source, tmp_path_factory):
    copy = tmp_path_factory.mktemp("copy")
    subprocess.run(["git", "clone", "-q", source, copy], check=True)
    (copy / "common" / "passwd").symlink_to("/etc/passwd")
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
    subprocess.run(["git", "-C", copy, "add", "."], check=True)
    subprocess.run(["git", "-C", copy, *identity, "commit", "-q", "-m", "link"], check=True)
    folder = results("resnet", change=lambda record: record["git"].update(commit=head(copy)))
    refused(folder, tmp_path / "out", copy, match="common/passwd.*not a plain file")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda record: record["git"].update(dirty=True), "not committed"),
        (lambda record: record["git"].update(commit="1" * 40), "is not in"),
        (lambda record: record["git"].update(commit="--upload-pack=x"), "is not in"),
        (lambda record: record.update(git=None), "not committed"),
        (lambda record: record["implementation"].pop("retraining"), "lacks retraining"),
        (lambda record: record.update(implementation={"retraining": 3}), "lacks"),
        (lambda record: record.update(system="$(rm -rf /)"), "not a preset's name"),
        (lambda record: record.update(system_description="none"), "is not an object"),
        (lambda record: record.update(system_description={"a": record["seed"]}), "differ in 'system_descr"),
        (lambda record: record.update(files=None), "is not the file"),
    ],
)
def test_records_that_do_not_allow_a_true_package(tmp_path, results, source, change, words):
    refused(results("resnet", change=change), tmp_path / "out", source, match=words)


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{}", '{"schema": 1, "runs": {}}', '{"schema": 2, "runs": {"result_0.txt": {}}}',
        '{"schema": 1, "runs": {"../x": {}}}', "[" * 100_000,
    ],
)  # fmt: skip
def test_a_damaged_run_json_is_one_clear_line(tmp_path, results, source, text):
    folder = results("resnet")
    (folder / SYSTEM / "resnet" / "run.json").write_text(text)
    refused(folder, tmp_path / "out", source, match="not a run.json of this repository")


@pytest.mark.parametrize("option", ["--org", "--system", "--implementation"])
@pytest.mark.parametrize("name", ["../up", "a/b", ".hidden", "", "a b", "x" * 200])
def test_names_cannot_leave_the_tree(tmp_path, results, source, option, name):
    refused(results("resnet"), tmp_path / "out", source, option, name, match="use letters")


# ------------------------------------------------------------------------------------------------ output


def test_list_writes_nothing(tmp_path, results, source, capsys):
    folder = results("resnet")
    before = set(tmp_path.iterdir())
    assert call(folder, None, source, "--list") == 0
    text = capsys.readouterr().out
    assert f"Example/results/{SYSTEM}/resnet/result_4.txt" in text and "Nothing was written" in text
    assert set(tmp_path.iterdir()) == before


def test_an_existing_output_stays_unless_forced(tmp_path, results, source):
    folder, output = results("resnet"), tmp_path / "out"
    assert call(folder, output, source) == 0
    (output / "mine").write_text("x")
    with pytest.raises(UserError, match="--force"):
        call(folder, output, source)
    assert (output / "mine").exists()
    assert call(folder, output, source, "--force") == 0
    assert not (output / "mine").exists() and (output / "Example.tar").exists()
    assert not list(tmp_path.glob(".*"))


def test_force_replaces_packages_only(tmp_path, results, source):
    folder = results("resnet")
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter").write_text("x")
    for place in (tmp_path / "thesis", tmp_path / "linked"):
        if place.name == "linked":
            place.symlink_to(tmp_path / "thesis")
        with pytest.raises(UserError, match="is not a package"):
            call(folder, place, source, "--force")
    assert (tmp_path / "thesis" / "chapter").exists()


def test_a_forced_package_that_is_refused_keeps_the_old_one(tmp_path, results, source):
    output = tmp_path / "out"
    assert call(results("resnet"), output, source) == 0
    before = (output / "SHA256SUMS").read_bytes()
    assert call(results("ssd", folder="more", count=2), output, source, "--force") == 1
    assert (output / "SHA256SUMS").read_bytes() == before


@pytest.mark.parametrize("place", ["results", "results/package", f"results/{SYSTEM}/resnet/x", "."])
def test_the_output_may_not_lie_in_its_inputs(tmp_path, results, source, place):
    folder = results("resnet")
    before = state(folder)
    with pytest.raises(UserError, match="only read"):
        call(folder, tmp_path / place, source)
    assert state(folder) == before


def test_a_full_disk_leaves_nothing(tmp_path, results, source, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("compliance.packaging.package_output._write_tar", full)
    refused(results("resnet"), tmp_path / "out", source, match="No space left")
