"""Says how a run ended: exit status, verdict, its quality against the baseline, and how to continue or improve it."""

import math
import pathlib
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from common.config import data_description
from common.config.quality import Measure, parts
from common.config.schema import RunConfig
from common.distributed import heartbeat
from common.errors import PeerLostError, UserError, answer, counted
from common.train import checkpoint_file, events
from timetotrain.run import advice, history

NOT_REACHED = 1
# A quality counts as nothing if it gains less than this part of the way from the baseline to the best possible one
# (where the lower is better: of the scale), and as fallen if it has lost this part of the best gain. Both are this
# project's choice.
LEAST_GAIN, MOST_LOST = 0.01, 0.5
SHOWN = 5  # Wrong answers, or classes of the lowest quality, that a run names at its end.


def signalled(stopped: events.RunStopped) -> int | None:
    """Returns the number of the signal that stopped a run, whichever process received it; None if none did."""
    name = stopped.reason.partition(" ")[0]
    return signal.Signals[name].value if name in signal.Signals.__members__ else None


def exit_status(stopped: events.RunStopped) -> int:
    """Returns 0 for success or a complete run, 1 for a missed target, or 128 + the signal's number."""
    if stopped.status in ("success", "complete"):
        return 0
    number = signalled(stopped)
    return NOT_REACHED if number is None else 128 + number


def stopped_early(name: str, when: str = "during initialization") -> UserError:
    """Returns the error of a run that the signal `name` ends before its first step."""
    return UserError(f"{name} {when}: nothing was trained", 128 + signal.Signals[name].value)


def explained(
    error: BaseException, signalled: str, task: Any, replicas: Any, say: Callable[[str], None]
) -> UserError | None:
    """Returns the error to raise instead of the one that ended a run, None if there is no better one.

    The launcher is told at once, since the other processes wait; timetotrain/run/cli.py ends the process.

    Args:
      signalled: name of the signal that came before the training, or "".
      task, replicas: of the run; None before they exist.
      say: prints a line for the user.
    """
    better = None
    # Keras rewords an error that a signal raises inside a layer, without its exit status.
    if signalled and (not isinstance(error, UserError) or str(stopped_early(signalled)) in str(error)):
        better = stopped_early(signalled)
    elif not isinstance(error, UserError):
        from timetotrain.run import step_errors

        diagnose = None if task is None else task.diagnose
        better = step_errors.explained(error, replicas, "global_batch_size", diagnose, say)
    why = better or error
    text, code = answer(why)
    heartbeat.send(code=code, **{"lost" if isinstance(why, PeerLostError) else "error": text})
    return better


def verdict(config: RunConfig, log: pathlib.Path) -> str:
    """Returns what the checker says of a log; a run without a target is not a result."""
    if config.logged_target is None:
        return f"no MLPerf result: {events.NO_TARGET}"
    from compliance.api import check

    findings = check([log]).findings
    errors = [f for f in findings if f.severity == "error"]
    command = f"(timetotrain check {log})"
    if not errors:
        return f"passes, {counted(len(findings), 'piece')} of advice {command}"
    return f"{counted(len(errors), 'error')}: {errors[0].message} {command}"


def continued(stopped: events.RunStopped, checkpoints: str | None) -> list[str]:
    """Returns the line that says how to continue a run that a signal stopped; [] for other runs."""
    if signalled(stopped) is None:
        return []
    if not checkpoints:
        return ["go on    not possible: no checkpoint was saved; --checkpoint_dir=DIR saves them"]
    saved = checkpoint_file.checkpoints(pathlib.Path(checkpoints))
    if not saved:
        return ["go on    not possible: it stopped before the first checkpoint"]
    step = checkpoint_file.step_of(saved[-1])
    lost = f", {stopped.step - step} steps before it stopped" if step < stopped.step else ""
    return [f"go on    with the same command and --checkpoint_dir={checkpoints}: from step {step}{lost}"]


def baseline(config: RunConfig, data_dir: str | None) -> Mapping[str, Any]:
    """Returns {"value", "what"} of the data's trivial answer, on the scale of the run's log; {} if none is known."""
    description = data_description.read(data_dir)
    least = dict(description.baseline) if description else {}
    if (
        least and config.ruleset == "0.6.0" and config.quality.unit == "points"
    ):  # Round v0.6 logs BLEU from 0 to 100.
        least["value"] = 100 * least["value"]
    same = least and parts(least["value"]).keys() in (parts(0.0).keys(), set(config.quality.names))
    return least if same else {}


def against(
    config: RunConfig, least: Mapping[str, Any], records: Sequence[history.Record], diverged: bool
) -> list[str]:
    """Returns the lines about a run's quality: the baseline, where the best evaluation was wrong, and a warning if it
    learned nothing or fell back.

    Args:
      least: from `baseline`.
      records: the run's history, since its start in this process.
      diverged: whether the loss was not finite.
    """
    measure, lines = config.quality, []
    if least:
        lines.append(f"baseline {measure.text(least['value'])} ({least['what']})")
    evaluations = [r for r in records if r["kind"] == "evaluation"]
    values = [r["value"] for r in evaluations]
    scores = [measure.score(value) for value in values]
    floor = measure.score(least["value"]) if least else -math.inf if measure.lower_is_better else 0.0
    best, last = max(scores, default=-math.inf), scores[-1] if scores else -math.inf
    if scores:
        lines += _weakest(evaluations[scores.index(best)])
    why = ""
    if diverged:
        why = "the training diverged"
    elif scores and not beaten(measure, floor, best):
        best_quality = measure.text(values[scores.index(best)])
        why = f"the best quality, {best_quality}, is no better than {'the baseline' if least else 'a trivial answer'}"
    elif scores and math.isfinite(floor) and last < floor + (1 - MOST_LOST) * (best - floor):
        why = (
            f"the quality fell from {measure.text(values[scores.index(best)])} to {measure.text(values[-1])}"
        )
    if why:
        lines.append(f"warning  {why}; {advice.tried(config, advice.cause(records, diverged))}")
    return lines


def _weakest(evaluation: history.Record) -> list[str]:
    """Returns the line about the most frequent wrong answers, or about the classes of the lowest quality."""
    if wrong := evaluation.get("confused", ())[:SHOWN]:
        return ["confused " + ", ".join(f"{name} as {answer}: {count}" for name, answer, count in wrong)]
    lowest = sorted(evaluation.get("by_class", {}).items(), key=lambda pair: pair[1])[:SHOWN]
    rows = ", ".join(f"{name} {value:.3f}" for name, value in lowest)
    return [f"weakest  {rows}"] if len(lowest) > 1 else []


def beaten(measure: Measure, floor: float, score: float) -> bool:
    """Whether a score gains on the score `floor` of a baseline, by LEAST_GAIN; no finite floor is always beaten."""
    scale = 100.0 if measure.unit == "points" and score > 1 else 1.0
    room = scale if measure.lower_is_better else scale - floor
    return not math.isfinite(floor) or score >= floor + LEAST_GAIN * room


def poor(measure: Measure, records: Sequence[history.Record], step: int) -> str:
    """Returns the line that warns of a checkpoint after `step` that is no better than the baseline; "" if it is better,
    or the history does not say.
    """
    least = next((r.get("baseline") for r in records[::-1] if r["kind"] == "run"), None) or {}
    value = next((r["value"] for r in records[::-1] if r["kind"] == "evaluation" and r["step"] == step), None)
    try:
        if value is None or beaten(measure, measure.score(least["value"]), measure.score(value)):
            return ""
        return (
            f"warning  {measure.text(value)} is no better than the baseline, {measure.text(least['value'])} "
            f"({least['what']}); train further before you use it"
        )
    except (KeyError, TypeError, ValueError):
        return ""
