"""Shows a person how a run goes on: a progress bar in a terminal, plain lines elsewhere. TensorFlow-free."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import TextIO

from common.config.clock import Clock
from common.config.schema import RunConfig
from common.train import events

# Between two plain lines, at least.
LINE_SECONDS = 10.0


class Reporter:
    """Shows events as they come; silent where `stream` is None."""

    def __init__(self, config: RunConfig, stream: TextIO | None = sys.stderr):
        self._config, self._clock, self._stream = config, Clock.of(config), stream
        self._bar = None
        self._last = 0.0
        self._start = (0.0, 0)

    def say(self, text: str) -> None:
        """Prints a line, clear of the bar."""
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
        elif isinstance(event, events.Evaluated):
            target = f"target {_shown(self._config.logged_target)}" + (", reached" if event.reached else "")
            seconds = event.time - self._start[0]
            value = _shown(event.value) if isinstance(event.value, dict) else event.value
            self.say(
                f"epoch {event.block.last_epoch}: eval_accuracy {value} ({target}) after {seconds:.1f} s"
            )
        elif isinstance(event, events.ReplicasChanged):
            self.say(f"a process was lost: from step {event.step} on with {event.count} replicas")
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
        self._start = (event.time, event.step)
        if self._stream is not None and self._stream.isatty():
            from tqdm import tqdm

            self._bar = tqdm(
                total=self._clock.train_steps,
                initial=event.step,
                unit="step",
                file=self._stream,
                dynamic_ncols=True,
            )

    def _progress(self, event: events.Progress) -> None:
        if self._bar is not None:
            self._bar.set_description("evaluating" if event.evaluating else f"epoch {event.block.last_epoch}")
            self._bar.update(event.step - self._bar.n)
        elif time.monotonic() - self._last >= LINE_SECONDS:
            self._last = time.monotonic()
            seconds, steps = event.time - self._start[0], event.step - self._start[1]
            rate = steps * self._config.global_batch_size / seconds if seconds > 0 else 0.0
            self.say(f"step {event.step}/{self._clock.train_steps}, {rate:.0f} examples/s")


def _shown(value: float | Mapping[str, float]) -> str:
    """Formats a quality: "0.759", or "BBOX 0.377, SEGM 0.339"."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_shown(part)}" for name, part in value.items())
    return f"{value:.4g}"
