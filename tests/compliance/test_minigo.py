"""Compares the verdict on logs of v0.6's Minigo, whose rules stand apart, with the stock checker's."""

import json
import pathlib
from collections.abc import Callable

import pytest

from compliance import check
from compliance.submission.scores import ScoreCard, score_directory
from lab.bench.harness import stock_checker

Lines = list[list]
HEADER = {
    "submission_org": "org", "submission_platform": "machine", "submission_division": "closed",
    "submission_status": "onprem", "submission_benchmark": "minigo", "submission_poc_name": "name",
    "submission_entry": "entry", "cache_clear": True, "init_start": None,
    "opt_base_learning_rate": [0.32, 0.032], "opt_learning_rate_decay_boundary_steps": [12500],
    "global_batch_size": 8192, "virtual_losses": 8, "init_stop": None, "run_start": None,
}  # fmt: skip


def valid() -> Lines:
    """[seconds, key, value, metadata] of a run of three epochs that is evaluated after its end, as theirs are."""
    lines = [[float(i), key, value, {}] for i, (key, value) in enumerate(HEADER.items())]
    started = lines[-1][0]
    for epoch in (1, 2, 3):
        at = 100.0 * epoch
        lines.append([at, "epoch_start", None, {"epoch_num": epoch}])
        lines.append([at + 50.25, "save_model", {"iteration": epoch}, {}])
        lines.append([at + 60, "epoch_stop", None, {"epoch_num": epoch}])
    for epoch in (1, 2):
        at = 1000.0 * epoch
        lines.append([at, "eval_start", None, {"epoch_num": epoch}])
        lines.append([at + 1, "eval_stop", None, {"epoch_num": epoch}])
        lines.append([at + 2, "eval_accuracy", 0.25 * epoch, {"epoch_num": epoch}])
    lines.append([3000.0, "eval_result", None, {"iteration": 2, "timestamp": 250.25 - started}])
    return lines


def of(lines: Lines, key: str) -> list:
    return next(line for line in lines if line[1] == key)


def changed(key: str, place: int, value: object) -> Callable[[Lines], None]:
    def change(lines: Lines) -> None:
        of(lines, key)[place] = value

    return change


FAULTS: dict[str, Callable[[Lines], None]] = {
    **{f"without {key}": (lambda lines, key=key: lines.remove(of(lines, key))) for key in HEADER},
    "result of another model": changed("eval_result", 3, {"iteration": 1, "timestamp": 236.25}),
    "result of a model without evaluation": changed("eval_result", 3, {"iteration": 3, "timestamp": 336.25}),
    "result without a model": changed("eval_result", 3, {"iteration": 9, "timestamp": 0}),
    "model of another epoch": changed("save_model", 2, {"iteration": 2}),
    "model without number": changed("save_model", 2, None),
    "model saved twice": lambda lines: lines.insert(
        lines.index(of(lines, "save_model")), list(of(lines, "save_model"))
    ),
    "epoch left out": changed("epoch_start", 3, {"epoch_num": 2}),
    "evaluation left out": changed("eval_start", 3, {"epoch_num": 2}),
    "no rates": changed("opt_base_learning_rate", 2, []),
    "no losses": changed("virtual_losses", 2, 0),
    "another benchmark's division": changed("submission_division", 2, "half"),
}


def write(lines: Lines, folder: pathlib.Path) -> pathlib.Path:
    path = folder / "minigo" / "result_0.txt"
    path.parent.mkdir()
    form = ':::MLL {:.3f} {}: {{"value": {}, "metadata": {}}}\n'
    text = "".join(form.format(1.5e9 + t, key, json.dumps(v), json.dumps(m)) for t, key, v, m in lines)
    path.write_text(text)
    return path


def verdicts(path: pathlib.Path) -> tuple[bool, bool]:
    """Whether (ours, stock) passes the log."""
    errors = [one for one in check([path], ruleset="0.6.0").findings if one.severity == "error"]
    answer, _ = stock_checker.verdict(path, "0.6.0", config=stock_checker.config(path, "0.6.0"))
    return not errors, answer == "pass"


def test_a_valid_log_passes(tmp_path: pathlib.Path) -> None:
    assert verdicts(write(valid(), tmp_path)) == (True, True)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_fails_in_both(fault: str, tmp_path: pathlib.Path) -> None:
    lines = valid()
    FAULTS[fault](lines)
    assert verdicts(write(lines, tmp_path)) == (False, False)


def scored(folder: pathlib.Path, seconds: list[float]) -> ScoreCard:
    """The score of runs whose model that met the target was saved so long after `run_start`."""
    for number, saved in enumerate(seconds):
        lines = valid()
        of(lines, "eval_result")[3] = {"iteration": 2, "timestamp": saved}
        (folder / str(number)).mkdir()
        path = write(lines, folder / str(number))
        (folder / "minigo").mkdir(exist_ok=True)
        path.rename(folder / "minigo" / f"result_{number}.txt")
    return score_directory(folder / "minigo", "0.6.0")


def test_the_clock_stops_when_the_model_that_met_the_target_is_saved(tmp_path: pathlib.Path) -> None:
    card = scored(tmp_path, [60.0 * minutes for minutes in (30, 1, 20, 20, 20, 20, 20, 20, 20, 28)])
    assert card.score == pytest.approx(21) and card.benchmark == "minigo"
    assert card.left_out == (1, 0)


def test_no_seconds_are_a_run_that_did_not_converge(tmp_path: pathlib.Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    minutes = [60.0 * minutes for minutes in (1, *[20] * 7, 28)]
    assert scored(tmp_path / "one", [*minutes, 0.0]).score == pytest.approx(21)
    two = scored(tmp_path / "two", [*minutes[1:], 0.0, 0.0])
    assert two.score is None and "10 runs" not in two.why
