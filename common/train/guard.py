"""Compares weights and slots that must be equal on every replica, and finds the replica whose bits changed.

Every replica adds the same summed gradients to the same weights, so one digest holds for all of them. If a digest
differs, the steps since the last comparison run again from its state and from their inputs. A wrong weight makes wrong
gradients, which all replicas add, so the bits of every replica may change. The one that erred is the one that differs
from all others, or, of two, the one whose weight is far farther from the repeated one, where the two differ most.

It does not see an error that all replicas receive alike: in a gradient before the sum, in a batch, or in a slot that
only one replica holds (`communication.weight_update`).
"""

import math
from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from common.config.run_length import Interval
from common.distributed import heartbeat
from common.distributed.fully_sharded import is_sharded
from common.distributed.weight_update import WholeUpdate
from common.errors import PeerLostError, UserError
from common.train import checkpoint_variables, divergence, events
from common.train.listener import Listener
from common.train.loop import Loop
from common.train.programs import Programs
from common.train.timing import now

# Steps between two comparisons, each of which copies the weights and slots to the host. This project's choice.
STEPS = 1000
_TOLD_STEPS = 20  # Steps of a replay between two signs of progress.
FAULTY = 70  # EX_SOFTWARE in sysexits.h: an internal error was detected.
# A replay takes at most as long as the run has taken since its copy; this project's choice.
REPLAY_SECONDS = 300.0
_CLEAR = 2.0  # How many times as far from the replay as the other replica the one that erred is; our choice.
_MODULUS = (1 << 61) - 1  # Sums stay below the largest value that `Replicas.all_reduce_max` compares.
_Digests = list[dict[str, int]]  # Of each local replica, by the variables' names.


def digest(array: np.ndarray) -> int:
    """Returns the sum of an array's 64-bit words; any single changed bit changes it."""
    data = np.ascontiguousarray(array).tobytes()
    words = np.frombuffer(data + bytes(-len(data) % 8), np.uint64)
    # Halves, so that no carry is lost.
    low, high = (int(np.sum(half, dtype=np.uint64)) for half in (words & 0xFFFFFFFF, words >> np.uint64(32)))
    return (low + (high << 32)) % _MODULUS


class Guard(Listener):
    """Compares at multiples of `steps`, before checkpoints, and at the end of a run, before its end is logged."""

    def __init__(self, programs: Programs, steps: int = 0):
        """`steps`: steps between comparisons; 0, or a single replica: none."""
        self._programs, self.steps, self._noted_at = programs, steps, 0.0
        # The last step of equal replicas, or the first of the run, and its state.
        self._equal: tuple[int, list[list[np.ndarray]]] | None = None

    @property
    def enabled(self) -> bool:
        return self.steps > 0 and self._programs.replicas.num_replicas > 1

    @property
    def can_replay(self) -> bool:
        """Whether a state was noted, and a replay from it takes at most REPLAY_SECONDS."""
        return self._equal is not None and now() - self._noted_at <= REPLAY_SECONDS

    def on_start(self, loop: Loop | None = None) -> None:
        """Notes the state before the first step, which the loop has compared, if a host has room."""
        if self.enabled or not self._programs.config.state_bytes:
            self._note(int(self._programs.state.step))

    def next_pause(self, step: int, end: int) -> float:
        if not self.enabled and not self.can_replay:
            self._equal = None  # Nothing replays from it any more: its memory is free for the run.
        pause = step + self.steps - step % self.steps if self.enabled else end
        return pause if pause < end else math.inf

    def on_pause(self, step: int, requested: bool) -> None:
        self.check(step)

    def on_interval_end(self, interval: Interval) -> None:
        step = int(self._programs.state.step)
        if self.enabled and step // self.steps > self._equal[0] // self.steps:
            self.check(step)

    def on_verdict(self, verdict: events.RunStopped) -> None:
        if verdict.sound:
            self.check(int(self._programs.state.step))

    def diagnose(self, step: int) -> str:
        """As `divergence.first_not_finite`; "" if its replay may take more than `REPLAY_SECONDS`."""
        if self._programs.replicas.all_reduce_max(int(not self.can_replay)):
            return ""
        cause = divergence.first_not_finite(self._programs, self.replay, step)
        self._programs.state.step.assign(step)
        return cause

    def _note(self, step: int) -> None:
        self._equal, self._noted_at = (step, self._state()), now()

    def check(self, step: int) -> None:
        """Compares the replicas after `step` steps; every process calls it, between two steps.

        Raises UserError if they differ; the message names the replica, its process and the first variable. The status
        is `FAULTY` in that process; the others raise PeerLostError.
        """
        if not self.enabled or self._equal is None or step == self._equal[0]:
            return
        digests = self._digests()
        name = self._different(digests)
        if not name:
            self._note(step)
            return
        before = self._pair(name)
        since = self.replay(step)
        where = f"at step {step}, {name} differs between the replicas"
        repeated = int(self._programs.state.step) == step and not self._different(self._digests())
        erred = repeated and self._erred([each[name] for each in digests], before, self._pair(name))
        if not repeated or erred is None:
            raise UserError(
                f"{where}; a replay of the steps since {since} does not say which is wrong: a signal stopped it, the "
                "steps do not repeat, or a machine fails all the time; start again with the same --checkpoint_dir, "
                "the second time on other machines",
                FAULTY,
            )
        process = erred // self._local
        reason = (
            f"rank {process} computed wrong: {where}, and by a replay of the steps since {since} the fault is on "
            f"replica {erred} alone; its memory or processor fails: leave that machine out, and start again with "
            "the same --checkpoint_dir"
        )
        local = process == self._programs.replicas.process_index
        raise UserError(reason, FAULTY) if local else PeerLostError(reason)

    @property
    def _local(self) -> int:
        """The number of this process's replicas."""
        return self._programs.replicas.num_replicas // self._programs.replicas.num_processes

    def _variables(self) -> Mapping[str, tf.Variable]:
        """Returns the variables that are equal on every replica, by their names in a checkpoint."""
        state = self._programs.state
        equal = {n: v for n, v in checkpoint_variables.weights(state).items() if not is_sharded(v)}
        if isinstance(state.update, WholeUpdate):
            for weight, slots in zip(state.model.trainable_variables, state.update.slots, strict=True):
                equal |= {f"slots/{weight.name}/{name}": slot for name, slot in slots.items()}
        return equal

    def _digests(self) -> _Digests:
        local = self._programs.replicas.local_results
        digests: _Digests = [{} for _ in range(self._local)]
        for name, variable in self._variables().items():
            for copies, copy in zip(digests, local(variable), strict=True):
                copies[name] = digest(copy.numpy())
        return digests

    def _different(self, digests: _Digests) -> str:
        """Returns the first variable whose digests differ, the same in all processes; "" if none does."""
        names, equal = list(digests[0]), self._programs.agreement.equal
        if equal([sum((i + 1) * d[n] for i, n in enumerate(names)) % _MODULUS for d in digests]):
            return ""
        return next((n for n in names if not equal([d[n] for d in digests])), "")

    def _pair(self, name: str) -> np.ndarray | None:
        """Returns a variable's values on two replicas, [2, size]; None if there are more replicas."""
        replicas = self._programs.replicas
        if replicas.num_replicas > 2:
            return None
        return replicas.all_values(self._variables()[name]).reshape(2, -1).astype(np.float64)

    def _erred(self, digests: list[int], before: np.ndarray | None, again: np.ndarray | None) -> int | None:
        """Returns the number of the replica that erred, of all processes; None if that is not clear.

        `digests` and `before` are of a variable that differed, `again` is that variable after a replay.
        """
        if before is None or again is None:
            replicas, first = self._programs.replicas, self._programs.replicas.process_index * self._local
            by_number = dict(enumerate(digests, first))  # Of this process; no digest is negative.
            digests = [replicas.all_reduce_max(by_number.get(r, 0)) for r in range(replicas.num_replicas)]
            odd = [r for r, each in enumerate(digests) if digests.count(each) == 1]
            return odd[0] if len(odd) == 1 else None
        with np.errstate(all="ignore"):
            # Both add the same gradients, however wrong, so that the error itself is where the two differ most.
            same = (before[0] == before[1]) | np.isnan(before).all(0)
            place = np.argmax(np.where(same, -1, np.nan_to_num(np.abs(before[0] - before[1]), nan=np.inf)))
            apart = np.nan_to_num(np.abs(before - again)[:, place], nan=np.inf)
        erred = int(np.argmax(apart))
        return erred if apart[erred] > _CLEAR * apart[1 - erred] else None

    def _state(self) -> list[list[np.ndarray]]:
        """Returns a copy of all variables on the host; one copy where the replicas are equal."""
        equal, local = {id(v) for v in self._variables().values()}, self._programs.replicas.local_results
        return [
            [np.array(copy.numpy()) for copy in (local(v)[:1] if id(v) in equal else local(v))]
            for v in self._programs.state.variables()
        ]

    def replay(self, step: int) -> int:
        """Repeats the steps since the noted state, up to `step`; returns the step where they begin."""
        since, copies = self._equal
        self._programs.state.restore(copies)
        before, last = heartbeat.phase("repeats steps"), heartbeat.step()
        train, nothing = self._programs.train_input(since), self._programs.synthetic(False)
        for first in range(since, step, _TOLD_STEPS):
            self._programs.call(train, nothing, min(_TOLD_STEPS, step - first), 0)
            # The launcher ends a run that makes no progress.
            heartbeat.at_step(int(self._programs.state.step))
        heartbeat.phase(before)
        heartbeat.at_step(last)
        return since
