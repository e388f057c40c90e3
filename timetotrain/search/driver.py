"""Runs trials in several processes; an Optuna study records them, and another search or machine can continue it.

A trial belongs to the process that began it: `owner` is [host, process number, process start]. If an owner on this
host is dead, the next search reads an ended run's result from its log, and reruns an unfinished trial.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import datetime
import os
import pathlib
import socket
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import optuna
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState

from common.errors import UserError
from timetotrain.launch.children import Children, EndedError, kill_session
from timetotrain.launch.procfs import began
from timetotrain.search import space as spaces
from timetotrain.search.space import Space
from timetotrain.search.trial import Command, Outcome, finished, read

SAMPLERS = ("grid", "random", "tpe")
GRACE_SECONDS = 3.0  # Maximum time between a trial's start and the record of its owner.


@dataclasses.dataclass(frozen=True)
class Plan:
    """The points that a search tries, and its end condition.

    Attributes:
      space: the fields and their values.
      sampler: one of SAMPLERS.
      trials: total number, over all processes.
      objectives: "quality", "time" or both.
      lower_is_better: for quality; time is always lower-is-better.
      stop_at: no new trial begins once a trial's first objective is at least this good.
      seed: seed of the sampler.
    """

    space: Space
    sampler: str
    trials: int
    objectives: tuple[str, ...]
    lower_is_better: bool = False
    stop_at: float | None = None
    seed: int = 0

    @property
    def directions(self) -> list[str]:
        return ["minimize" if n == "time" or self.lower_is_better else "maximize" for n in self.objectives]

    def good_enough(self, value: float) -> bool:
        """Whether this value of the first objective ends the search."""
        if self.stop_at is None:
            return False
        return value <= self.stop_at if self.directions[0] == "minimize" else value >= self.stop_at


class Search:
    """A study, and the trials that this process runs for it."""

    def __init__(self, name: str, plan: Plan, command: Command, folder: pathlib.Path, storage: BaseStorage):
        """Opens or creates the study.

        Raises:
          UserError: a study of that name searches something else.
        """
        self.plan, self.command, self.folder = plan, command, folder
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        with contextlib.suppress(optuna.exceptions.DuplicatedStudyError):
            optuna.create_study(storage=storage, study_name=name, directions=plan.directions)
        opened = _opened(optuna.load_study(study_name=name, storage=storage))
        self.study = optuna.load_study(study_name=name, storage=storage, sampler=_sampler(plan, opened))
        self._check(name)
        self._lock = threading.Lock()
        self._children = Children()

    @property
    def ended_by(self) -> int:
        """The number of the signal that ended the search; 0 if none has."""
        return self._children.ended_by

    def _check(self, name: str) -> None:
        identity = {
            "benchmark": self.command.benchmark, "flags": list(self.command.flags),
            "objectives": list(self.plan.objectives), "part": self.command.part, "sampler": self.plan.sampler,
            "space": {k: optuna.distributions.distribution_to_json(v) for k, v in self.plan.space.items()},
        }  # fmt: skip
        # List trials before reading the attributes: a search writes its attributes before its first trial.
        trials = sorted(self.folder.glob("trial-*"))
        recorded = self.study.user_attrs
        if trials and "benchmark" not in recorded:
            raise UserError(
                f"{trials[0]}: of a search in another storage; move {self.folder} away or give another --name"
            )
        for key, value in identity.items():
            if recorded.get(key, value) != value:
                raise UserError(
                    f"--name={name}: a search with another {key} ({recorded[key]}); give another --name"
                )
        for key in identity.keys() - recorded.keys():
            self.study.set_user_attr(key, identity[key])
        if self.plan.sampler == "grid":
            self._queue_missing()

    def _queue_missing(self) -> None:
        """Queues every grid point without a trial; runs at each start, since a search may be killed while it queues."""
        queued = [_point(t) for t in self.study.get_trials(deepcopy=False)]
        for point in spaces.grid(self.plan.space):
            if point not in queued:
                self.study.enqueue_trial(point)

    def run(self, processes: int, say: Callable[[str], None] = print) -> None:
        """Runs trials until the plan is done, `processes` at a time; SIGTERM and Ctrl-C end the search and its runs."""
        with self._children.ended_by_signals():
            while True:
                self._take_over()
                with concurrent.futures.ThreadPoolExecutor(processes) as pool:
                    workers = [pool.submit(self._work, say) for _ in range(processes)]
                    for worker in workers:
                        worker.result()
                if self.ended_by or not self._left_behind():
                    return
                time.sleep(1)

    def _work(self, say: Callable[[str], None]) -> None:
        while (trial := self._next()) is not None:
            try:
                outcome = self._train(trial)
            except EndedError:
                return  # The trial stays open; the next search reruns it.
            self._tell(trial, outcome)
            say(describe(trial.number, trial.params, outcome))

    def _next(self) -> optuna.Trial | None:
        with self._lock:
            while (trial := self._ask()) is not None and self._is_double(trial):
                self._withdraw(trial)
            return trial

    def _ask(self) -> optuna.Trial | None:
        trials = self.study.get_trials(deepcopy=False)
        begun = sum(t.state != TrialState.WAITING and "again" not in t.user_attrs for t in trials)
        good = any(t.state == TrialState.COMPLETE and self.plan.good_enough(t.values[0]) for t in trials)
        if self.ended_by or good or begun >= self.plan.trials:
            return None
        if self.plan.sampler == "grid" and all(t.state != TrialState.WAITING for t in trials):
            return None
        trial = self.study.ask(self.plan.space)
        trial.set_user_attr("owner", [socket.gethostname(), os.getpid(), began(os.getpid())])
        return trial

    def _is_double(self, trial: optuna.Trial) -> bool:
        """Whether an earlier trial covers the same point: two searches that start at once may both queue it."""
        instead = trial.user_attrs.get("instead_of")
        if instead is None and self.plan.sampler != "grid":
            return False
        point = _point(self.study._storage.get_trial(trial._trial_id))
        earlier = [t for t in self.study.get_trials(deepcopy=False) if t.number < trial.number]
        return any(
            t.user_attrs.get("instead_of") == instead and (instead is not None or _point(t) == point)
            for t in earlier
        )

    def _withdraw(self, trial: optuna.Trial) -> None:
        """Ends a trial that another one replaces; it is neither counted nor reported."""
        trial.set_user_attr("again", True)
        self.study.tell(trial, state=TrialState.FAIL)

    def _train(self, trial: optuna.Trial) -> Outcome:
        return self.command.run(
            trial.params,
            self._folder_of(trial.number),
            self._children,
            lambda process: trial.set_user_attr("process", process.pid),
        )

    def _folder_of(self, number: int) -> pathlib.Path:
        return self.folder / f"trial-{number}"

    def _tell(self, trial: optuna.Trial, outcome: Outcome) -> None:
        for key, value in dataclasses.asdict(outcome).items():
            trial.set_user_attr(key, value)
        values = outcome.objectives(self.plan.objectives)
        self.study.tell(trial, values, state=TrialState.COMPLETE if values else self._without_value(outcome))

    def _without_value(self, outcome: Outcome) -> TrialState:
        """Returns the state of a trial without a value: a diverged run or a missed target still informs the sampler."""
        return (
            TrialState.FAIL if outcome.minutes is None or len(self.plan.objectives) > 1 else TrialState.PRUNED
        )

    def _left_behind(self) -> bool:
        """Whether any open trial belongs to a dead search; without an owner, this shows only after a while."""
        running = [t for t in self.study.get_trials(deepcopy=False) if t.state == TrialState.RUNNING]
        return any("owner" not in trial.user_attrs or _ownerless(trial) for trial in running)

    def _take_over(self) -> None:
        """Closes trials that dead searches on this machine left open: records ended runs, requeues the others."""
        trials = self.study.get_trials(deepcopy=True)
        replaced = {t.user_attrs.get("instead_of") for t in trials}
        for trial in trials:
            if trial.state != TrialState.RUNNING or not _ownerless(trial):
                continue
            folder = self._folder_of(trial.number)
            _end_orphan(trial, folder)
            live = optuna.Trial(self.study, trial._trial_id)
            # If two searches start at once, the second finds the trial finished.
            with contextlib.suppress(optuna.exceptions.UpdateFinishedTrialError):
                if finished(folder):
                    self._tell(live, read(folder, self.command.part))
                else:
                    # Queue first, then withdraw: after a kill in between, the trial is open and its replacement is
                    # known.
                    if trial.number not in replaced:
                        self.study.enqueue_trial(_point(trial), user_attrs={"instead_of": trial.number})
                    self._withdraw(live)


def describe(number: int, params: dict[str, Any], outcome: Outcome) -> str:
    """Formats a trial and its result as one line."""
    fields = " ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in params.items())
    quality = "-" if outcome.quality is None else f"{outcome.quality:.5g}"
    minutes = "-" if outcome.minutes is None else f"{outcome.minutes:.2f} minutes"
    return f"trial {number}: {fields}: {quality}, {minutes} {outcome.message}".rstrip()


def _opened(study: optuna.Study) -> tuple[int, int]:
    """Records this search in the study; returns (number of searches, its place in time), a unique pair.

    Two searches that count the same number see each other, so their places differ.
    """
    own_key = f"opened {time.time_ns():020} {socket.gethostname()} {os.getpid()}"
    study.set_user_attr(own_key, True)
    keys = sorted(key for key in study.user_attrs if key.startswith("opened "))
    return len(keys), keys.index(own_key)


def _sampler(plan: Plan, opened: tuple[int, int]) -> optuna.samplers.BaseSampler:
    # Searches that share a study, concurrently or in sequence, must draw different points.
    seed = int(np.random.SeedSequence([plan.seed, *opened]).generate_state(1)[0])
    if plan.sampler == "tpe":
        # constant_liar: running trials count as bad, so that processes do not try the same point.
        warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
        return optuna.samplers.TPESampler(seed=seed, constant_liar=True)
    return optuna.samplers.RandomSampler(seed=seed)


def _ownerless(trial: FrozenTrial) -> bool:
    """Whether the process that began a trial ran on this machine and is gone."""
    if "owner" not in trial.user_attrs:  # Killed before it recorded the owner, or about to record it.
        return (datetime.datetime.now() - trial.datetime_start).total_seconds() > GRACE_SECONDS
    host, number, *begin = trial.user_attrs["owner"]
    return host == socket.gethostname() and [began(number)] != begin


def _point(trial: FrozenTrial) -> dict[str, Any]:
    """Returns a trial's point; a trial killed at its start has drawn only part of its queued point."""
    return {**trial.params, **trial.system_attrs.get("fixed_params", {})}


def _end_orphan(trial: FrozenTrial, folder: pathlib.Path) -> None:
    """Kills a run whose search was killed; only kills a process whose command line names the trial's folder."""
    number = trial.user_attrs.get("process")
    with contextlib.suppress(OSError):
        if (
            number
            and f"--result_dir={folder}".encode() in pathlib.Path(f"/proc/{number}/cmdline").read_bytes()
        ):
            kill_session(number)
