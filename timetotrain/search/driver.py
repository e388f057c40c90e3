"""Runs trials in several processes; an Optuna study records them, and another search can continue it.

A search reruns the point of a trial whose search was killed, or takes the result from its log if the run had ended.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import pathlib
import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import optuna
from optuna.storages import RDBStorage, RetryFailedTrialCallback
from optuna.trial import FrozenTrial, TrialState

from common.errors import UserError
from timetotrain.launch.children import Children, EndedError
from timetotrain.search import space as spaces
from timetotrain.search.space import Space
from timetotrain.search.trial import Command, Outcome, read, wait

SAMPLERS = ("grid", "random", "tpe")
warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
_retry = RetryFailedTrialCallback()


@dataclasses.dataclass(frozen=True)
class Plan:
    """The points that a search tries, and its end condition.

    Attributes:
      space: the fields and their values.
      sampler: one of SAMPLERS.
      trials: total number, over all processes.
      objective: "quality" or "time".
      lower_is_better: for quality; time is always lower-is-better.
      seed: seed of the sampler.
    """

    space: Space
    sampler: str
    trials: int
    objective: str
    lower_is_better: bool = False
    seed: int = 0

    @property
    def direction(self) -> str:
        return "minimize" if self.objective == "time" or self.lower_is_better else "maximize"


def open_storage(path: pathlib.Path) -> RDBStorage:
    """Opens an SQLite file.

    Raises UserError if the file is not a database, or cannot be opened.
    """
    try:
        # Seconds that a thread waits for another one's writes.
        return RDBStorage(f"sqlite:///{path}", {"connect_args": {"timeout": 60}})
    except Exception as error:  # A database driver may raise anything.
        cause = getattr(error.__cause__, "orig", error)
        fix = "move it away" if "not a database" in str(cause) else "then begin again: the search goes on"
        raise UserError(f"{path}: cannot open it: {cause}; {fix}") from error


class Search:
    """A study, and the trials that this process runs for it.

    Attributes:
      study: the Optuna study.
      children: the running trials; `signals.number` is the signal that ended the search, or 0.
    """

    def __init__(self, name: str, plan: Plan, command: Command, folder: pathlib.Path, storage: RDBStorage):
        """Opens or creates the study. Raises UserError if a study of that name searches something else."""
        self.plan, self.command, self.folder, self._storage = plan, command, folder, storage
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.study = optuna.create_study(
            storage=storage,
            study_name=name,
            direction=plan.direction,
            load_if_exists=True,
            sampler=_sampler(plan),
        )
        self._check(name)
        self._lock = threading.Lock()
        self.children = Children()

    def _check(self, name: str) -> None:
        identity = {
            "benchmark": self.command.benchmark, "flags": list(self.command.flags),
            "objectives": [self.plan.objective], "part": self.command.part, "sampler": self.plan.sampler,
            "space": {k: optuna.distributions.distribution_to_json(v) for k, v in self.plan.space.items()},
        }  # fmt: skip
        # List trials before reading the attributes: a search writes its attributes before its first trial.
        trials = sorted(self.folder.glob("trial-*"))
        recorded = self.study.user_attrs.get("search")
        if recorded is None:
            if trials or self.study.trials:
                place = self.folder if trials else f"--name={name}"
                raise UserError(
                    f"{place}: of an earlier version, or without its database; give another --name"
                )
            self.study.set_user_attr("search", recorded := identity)
        for key, value in identity.items():
            if recorded[key] != value:
                raise UserError(
                    f"--name={name}: a search with another {key} ({recorded[key]}); give another --name"
                )

    def run(self, processes: int, say: Callable[[str], None] = print) -> None:
        """Runs trials until the plan is done, `processes` at a time; SIGTERM and Ctrl-C end the search and its runs."""
        for trial in counted(self.study):  # Those of a search that was killed.
            if trial.state == TrialState.RUNNING:
                self.study.tell(trial.number, state=TrialState.FAIL)
            elif trial.state != TrialState.FAIL or "outcome" in trial.user_attrs:
                continue
            _retry(self.study, trial)
        with self.children.signals, concurrent.futures.ThreadPoolExecutor(processes) as pool:
            for worker in [pool.submit(self._work, say) for _ in range(processes)]:
                worker.result()

    def _work(self, say: Callable[[str], None]) -> None:
        while (trial := self._next()) is not None:
            try:
                outcome = self._train(trial)
            except EndedError:
                self.study.tell(trial, state=TrialState.FAIL)
                _retry(self.study, self._storage.get_trial(trial._trial_id))
                return
            self._report(trial, outcome)
            say(describe(trial.number, trial.params, outcome))

    def _next(self) -> optuna.Trial | None:
        with self._lock:
            trials = counted(self.study)
            if self.children.signals.number or len(trials) >= self.plan.trials:
                return None
            trial = self.study.ask()
            self.study.sampler = _sampler(self.plan, trial.number)
            for field, distribution in self.plan.space.items():
                trial._suggest(field, distribution)
            return trial

    def _train(self, trial: optuna.Trial) -> Outcome:
        for number in _retry.retry_history(self._storage.get_trial(trial._trial_id)):
            wait(self.folder / f"trial-{number}", self.children)
            # The run ended, but its search was killed, or found a full disk, before it recorded that.
            outcome = read(self.folder / f"trial-{number}", self.command.part)
            if outcome.minutes is not None:
                return outcome
        return self.command.run(trial.params, self.folder / f"trial-{trial.number}", self.children)

    def _report(self, trial: optuna.Trial, outcome: Outcome) -> None:
        value = outcome.objective(self.plan.objective)
        # A diverged run or a missed target still informs the sampler.
        lost = TrialState.FAIL if outcome.minutes is None else TrialState.PRUNED
        state = lost if value is None else TrialState.COMPLETE
        trial.set_user_attr("outcome", dataclasses.asdict(outcome))
        self.study.tell(trial, value, state)


def counted(study: optuna.Study) -> list[FrozenTrial]:
    """Returns the trials that have begun; a trial that was rerun counts once, with its last run."""
    trials = study.get_trials(deepcopy=False)
    rerun = {number for trial in trials for number in _retry.retry_history(trial)}
    return [t for t in trials if t.state != TrialState.WAITING and t.number not in rerun]


def describe(number: int, params: dict[str, Any], outcome: Outcome) -> str:
    """Formats a trial and its result as one line."""
    fields = " ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in params.items())
    quality = "-" if outcome.quality is None else f"{outcome.quality:.5g}"
    minutes = "-" if outcome.minutes is None else f"{outcome.minutes:.2f} minutes"
    return f"trial {number}: {fields}: {quality}, {minutes} {outcome.message}".rstrip()


class _Grid(optuna.samplers.GridSampler):
    """Optuna's, which gives each of the first trials the point of its number; `Search` knows the end by itself."""

    def after_trial(self, *_: Any) -> None:
        """Does not stop the study, which only `Study.optimize` permits."""


def _sampler(plan: Plan, number: int = 0) -> optuna.samplers.BaseSampler:
    """Returns the sampler of a trial: searches that share a study, at once or in turn, draw different points."""
    if plan.sampler == "grid":
        return _Grid(spaces.axes(plan.space), 0)  # The same order in every search that shares the study.
    seed = int(np.random.SeedSequence([plan.seed, number]).generate_state(1)[0])
    if plan.sampler == "tpe":
        # constant_liar: running trials count as bad, so that processes do not try the same point.
        return optuna.samplers.TPESampler(seed=seed, constant_liar=True)
    return optuna.samplers.RandomSampler(seed=seed)
