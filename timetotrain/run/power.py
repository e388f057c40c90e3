"""Records the power of this host during a run: RAPL's counters of processors and memory, and NVML's of GPUs.

The readings go to power_in_band/<log's name>/node_0.txt beside the log, in the form of the rounds' power logs. They are
informative: the rules of power (mlcommons/training_policies, power_measurement.adoc) take readings of whole nodes from
an instrument, and these leave out fans, disks, losses, and all other hosts. TensorFlow-free.
"""

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path

from common.train.timing import now
from compliance.power import power_logs

# Returns joules since any fixed moment.
Counter = Callable[[], float]

_POWERCAP = Path("/sys/class/powercap")
_EVERY = 1.0  # seconds; power_measurement.adoc, "Requirements": at least one reading a second
NONE = "power    none: no sensor that can be read (/sys/class/powercap needs root; GPUs need: pip install nvidia-ml-py)"


def rapl(root: Path = _POWERCAP) -> list[Counter]:
    """Returns a counter for each package and its memory (powercap.rst of Linux: energy_uj, in microjoules)."""
    counters: list[Counter] = []
    for zone in sorted(root.glob("*-rapl:*")):
        try:
            name = (zone / "name").read_text().strip()
            (zone / "energy_uj").read_text()
            wrap = int((zone / "max_energy_range_uj").read_text())
        except (OSError, ValueError):
            continue
        if name.startswith("package") or name == "dram":  # cores are part of a package, psys holds packages
            counters.append(_unwrapped(zone / "energy_uj", wrap))
    return counters


def _unwrapped(path: Path, wrap: int) -> Counter:
    """Returns a counter that does not start again at 0 after `wrap` microjoules."""
    turns = last = 0

    def joules() -> float:
        nonlocal turns, last
        value = int(path.read_text())
        turns += value < last
        last = value
        return (value + turns * wrap) / 1e6

    return joules


def nvml() -> list[Counter]:
    """Returns a counter for each GPU of the host; [] without pynvml, a driver, or such a counter."""
    try:
        import pynvml

        pynvml.nvmlInit()
        devices = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        for device in devices:
            pynvml.nvmlDeviceGetTotalEnergyConsumption(device)
    except Exception:  # pynvml has its own kinds of errors
        return []
    return [lambda one=one: pynvml.nvmlDeviceGetTotalEnergyConsumption(one) / 1000 for one in devices]


class Monitor:
    """Writes a power log from `start` to `stop`. A counter that fails ends the log and not the run."""

    def __init__(self, log: Path, counters: list[Counter] | None = None):
        """`log` is the run's own log; `counters`: None for those of this host."""
        self.path = log.parent / power_logs.IN_BAND / log.stem / "node_0.txt"
        self._counters = [*rapl(), *nvml()] if counters is None else counters
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._record, name="power", daemon=True)

    def start(self) -> None:
        """Starts the readings, if there is a sensor."""
        if self._counters:
            self._thread.start()

    def stop(self) -> None:
        """Takes the last reading and closes the log."""
        self._end.set()
        if self._thread.ident is not None:
            self._thread.join(timeout=10 * _EVERY)

    def line(self, start: float, stop: float) -> str:
        """Returns what to print of a run from `start` to `stop`, in seconds since 1970."""
        if not self._counters:
            return NONE
        joules = None
        if self.path.is_file():
            joules = power_logs.energy(power_logs.read(self.path), 1000 * start, 1000 * stop)
        if joules is None:
            return f"power    none: no reading could be written to {self.path}"
        return f"power    {joules / 1000:.3f} kJ of {len(self._counters)} sensors, informative: {self.path}"

    def _record(self) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("w", buffering=1, encoding="utf-8") as file:
                self._readings(lambda *record: file.write(_line(*record)))
        except (OSError, ValueError):  # a full disk, or a sensor that is gone
            return

    def _readings(self, write: Callable[..., object]) -> None:
        last, before, clock = now(), self._joules(), time.monotonic()
        write("power_measurement_start", None, last)
        write("informative", True, last)
        ended = False
        while not ended:
            ended = self._end.wait(_EVERY)
            joules, elapsed = self._joules(), time.monotonic()
            if elapsed > clock:
                last = now()
                write("power_reading", (joules - before) / (elapsed - clock), last)
                before, clock = joules, elapsed
        write("power_measurement_stop", None, now())

    def _joules(self) -> float:
        return sum(counter() for counter in self._counters)


def _line(key: str, value: object, seconds: float) -> str:
    record = {"namespace": "", "time_ms": round(1000 * seconds), "event_type": "POINT_IN_TIME", "key": key}
    place = {"file": "timetotrain/run/power.py", "lineno": 0}
    return ":::MLLOG " + json.dumps({**record, "value": value, "metadata": place}) + "\n"
