"""Shows a run's progress: a progress bar in a terminal, plain lines elsewhere. TensorFlow-free."""

import math
import sys
import time
from collections.abc import Mapping
from typing import Any, TextIO

from common.config.run_length import RunLength
from common.config.schema import RunConfig
from common.train import events

# Number of loss points that a history keeps per block, each a mean over its steps.
POINTS = 50
# Minimum seconds between two plain lines.
LINE_SECONDS = 10.0
# A run that takes longer says so once its pace is known.
LONG_SECONDS = 120.0


class Reporter:
    """Shows events as they arrive; silent if `stream` is None."""

    def __init__(self, config: RunConfig, stream: TextIO | None = sys.stderr):
        self._config, self._run_length, self._stream = config, RunLength.of(config), stream
        self._bar = None
        self._last = 0.0
        self._start = self._pace = (0.0, 0)
        self.least: Mapping[str, Any] = {}  # Quality of a trivial answer: {"value", "what"}.
        self._length_announced = False  # Whether the run's length has been announced.
        self._losses: dict[int, float] = {}  # Epoch -> the last loss of its block.

    def say(self, text: str) -> None:
        """Prints a line without disturbing the bar."""
        if self._stream is None:
            return
        if self._bar is not None:
            self._bar.clear()
        print(text, file=self._stream, flush=True)

    def record(self, event: events.Event) -> None:
        """Shows an event."""
        if isinstance(event, events.RunStarted):
            self._run_started(event)
        elif isinstance(event, events.Progress):
            self._progress(event)
        elif isinstance(event, events.Trained):
            if event.losses:  # Uses the history's last point: a single step says little.
                size = max(1, -(-len(event.losses) // POINTS))
                last = event.losses[-((len(event.losses) - 1) % size + 1) :]
                self._losses[event.interval.last_epoch] = sum(last) / len(last)
        elif isinstance(event, events.Evaluated):
            self._evaluated(event)
        elif isinstance(event, events.RunStopped):
            self.close()
            if event.reason:
                self.say(f"run {event.status} at step {event.step}: {event.reason}")

    def close(self) -> None:
        """Removes the bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _run_started(self, event: events.RunStarted) -> None:
        self._start = self._pace = (event.time, event.step)
        if self._stream is not None and self._stream.isatty():
            from tqdm import tqdm

            self._bar = tqdm(
                total=self._run_length.train_steps,
                initial=event.step,
                unit="step",
                file=self._stream,
                dynamic_ncols=True,
            )

    def _evaluated(self, event: events.Evaluated) -> None:
        measure, target = self._config.quality, self._config.logged_target
        interval = event.interval
        text = f"{self._place(interval.last_epoch, interval.end_step)}: {measure.text(event.value)}"
        notes = [] if target is None else [f"target {measure.target(target)}"]
        notes += ["reached"] if target is not None and event.reached else []
        notes += [f"baseline {measure.target(self.least['value'])}"] if self.least else []
        text += f" ({', '.join(notes)})" if notes else ""
        loss = self._losses.get(interval.last_epoch)
        if loss is not None:
            text += f", loss {number(loss)}"
        self.say(f"{text}, after {duration(event.time - self._start[0])}")

    def _progress(self, event: events.Progress) -> None:
        if self._pace == self._start and event.step > self._start[1]:
            # The first step waits until the input has filled its buffers.
            self._pace = (event.time, event.step)
        seconds, steps = event.time - self._pace[0], event.step - self._pace[1]
        rate = steps * self._config.global_batch_size / seconds if seconds > 0 else 0.0
        if steps and seconds >= LINE_SECONDS and not self._length_announced:
            self._tell_length(seconds / steps)
        loss = "" if math.isnan(event.loss) else f"loss {number(event.loss)}, "
        if self._bar is not None:
            self._bar.set_description(
                "evaluating" if event.evaluating else self._place(self._now(event), event.step)
            )
            self._bar.set_postfix_str(f"{loss}{number(rate)} examples/s", refresh=False)
            self._bar.update(event.step - self._bar.n)
        elif steps and time.monotonic() - self._last >= LINE_SECONDS:
            self._last = time.monotonic()
            remaining = seconds / steps * (self._run_length.train_steps - event.step)
            place = self._place(self._now(event), event.step)
            where = f"step {event.step} of {self._run_length.train_steps}, {place}"
            now = "evaluating, " if event.evaluating else ""
            most = "" if self._config.logged_target is None else "at most "
            self.say(f"{where}: {now}{loss}{number(rate)} examples/s, {most}{duration(remaining)} left")

    def _tell_length(self, step_seconds: float) -> None:
        """Announces the time of a long run once its pace is known."""
        self._length_announced = True
        total = step_seconds * (self._run_length.train_steps - self._start[1])
        if total >= LONG_SECONDS:
            most = "" if self._config.logged_target is None else "at most "
            self.say(
                f"the run takes {most}about {duration(total)} and its evaluations; Ctrl-C stops it, "
                "--config.train_epochs=N makes it shorter"
            )

    def _now(self, event: events.Progress) -> int:
        """Returns the epoch of the last finished step; a block may have several."""
        interval, done = event.interval, max(event.step - 1, 0) * self._run_length.global_batch_size
        return min(max(1 + done // self._run_length.num_examples, interval.first_epoch), interval.last_epoch)

    def _place(self, epoch: int, step: int) -> str:
        if self._config.counted:
            return f"{step * self._run_length.global_batch_size:,} {self._config.counted}"
        return f"epoch {epoch} of {max(epoch, self._run_length.epoch_number(self._run_length.train_steps))}"


def number(value: float) -> str:
    """Formats a number with three significant digits and no exponent if that is short: "0.0123", "1.42", "1,250"."""
    if not math.isfinite(value):
        return str(value)
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:#.3g}".rstrip(".")


def duration(seconds: float) -> str:
    """Formats a time: "14.8 s", "3 min 5 s", "2 h 10 min"."""
    if seconds < 60:
        return f"{max(seconds, 0):.1f} s"
    minutes = int(seconds) // 60
    if minutes < 60:
        return f"{minutes} min {int(seconds) % 60} s"
    return f"{minutes // 60} h {minutes % 60} min"
