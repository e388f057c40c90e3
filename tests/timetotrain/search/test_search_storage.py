"""Tests the files of a search on a full disk, after a killed writer, and beside the files of another search."""

import pathlib
import resource
import subprocess
from collections.abc import Iterator

import pytest

from tests.timetotrain.search.searches import (
    DECAY,
    GRID,
    RATE,
    bowl_in,
    epochs_tried,
    in_a_process,
    search,
    table,
)
from timetotrain.launch.children import Children
from timetotrain.search import __main__ as command
from timetotrain.search import trial


@pytest.fixture
def bowl(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pathlib.Path]:
    yield from bowl_in(tmp_path, monkeypatch)


def test_a_disk_that_fills_up_ends_the_search_in_one_line_and_loses_no_trial(bowl, monkeypatch) -> None:
    """A limit on the length of a file leaves the database room for some trials only, whose results are long."""
    monkeypatch.setenv("BOWL_WORDS", "." * 2000)
    flags = search("--space", RATE, DECAY, "--trials=8", "--sampler=random")
    assert command.main([*flags, "--trials=1"]) == 0
    limit = (bowl / "results/search/it/search.db").stat().st_size + 16384
    ended = subprocess.run(
        in_a_process(flags),
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    assert ended.returncode == 2 and ended.stderr.startswith("error: ") and ended.stderr.count("\n") == 1
    assert "search.db: " in ended.stderr and "; free space there" in ended.stderr
    told = [line for line in ended.stdout.splitlines() if line.startswith("trial ")]
    assert told
    assert command.main(flags) == 0
    rows = table(bowl)
    assert len(rows) == 8 and all(row["state"] == "done" for row in rows)
    values = {row["optimizer.base_learning_rate"][:4] for row in rows}
    assert {line.split("base_learning_rate=")[1][:4] for line in told} <= values


def test_logs_of_another_search_are_no_results(bowl, capsys) -> None:
    assert command.main(search("--space", "optimizer.base_learning_rate=0.001,0.1", "--sampler=grid")) == 0
    other = search("--space", "optimizer.momentum=0.5,0.6", "--sampler=grid", "--storage=other.log")
    assert command.main(other) == 2
    assert "trial-0: of a search in another storage; move " in capsys.readouterr().err
    assert not table(bowl)[0].get("optimizer.momentum")


def test_a_log_that_lies_in_a_trial_s_folder_is_not_its_result(bowl) -> None:
    """The log is an older one, in the folder of a run that fails before it writes its own."""
    folder = bowl / "trial-0"
    run = trial.Command("bowl", ("--system=cpu-tiny",)).run
    assert run({"optimizer.momentum": 0.9}, folder, Children()).quality is not None
    outcome = run({"optimizer.momentum": 0.5}, folder, Children())
    assert outcome.quality is None and outcome.message == "error: no run with this momentum"


def test_a_file_that_is_no_database_stays_unchanged(bowl, capsys) -> None:
    notes = bowl / "notes.txt"
    notes.write_text("to buy: a disk")
    assert command.main(search(*GRID, f"--storage={notes}")) == 2
    assert f"--storage={notes}: cannot open it: " in capsys.readouterr().err
    assert notes.read_text() == "to buy: a disk"


def test_a_result_folder_that_cannot_be_made_is_one_line(bowl, capsys) -> None:
    (bowl / "results").write_text("a file")
    assert command.main(search(*GRID, "--storage=sqlite:///s.db")) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "Not a directory" in error and "choose another --result-dir" in error


@pytest.mark.parametrize("name", ["search.csv", "search.md", "search.png"])
def test_a_full_disk_at_the_end_is_one_line_and_the_next_search_writes_what_is_missing(
    bowl, monkeypatch, capsys, name
) -> None:
    folder = bowl / "results" / "search" / "it"
    assert command.main(search("--space", "train_epochs=1,2,3,4", "--sampler=grid", "--trials=2")) == 0
    before = (folder / name).read_bytes()
    write = pathlib.Path.write_bytes

    def some(self: pathlib.Path, data: bytes) -> int:
        if not self.name.startswith(name):
            return write(self, data)
        write(self, data[:10])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(pathlib.Path, "write_bytes", some)
        assert command.main(search(*GRID)) == 2
    assert f"{name}: cannot write: No space left on device; free space there" in capsys.readouterr().err
    assert (folder / name).read_bytes() == before and not list(folder.glob("*.partial"))
    assert command.main(search(*GRID)) == 0 and (folder / name).read_bytes() != before
    assert epochs_tried(bowl) == ["1", "2", "3", "4"]
