"""Stands in for a process of a run, without TensorFlow: sends heartbeats, takes steps and fails as ordered.

python -m tests.timetotrain.launch.watch.fake_worker '{"1": "kill"}' kills rank 1 in its fifth step; the others
continue.
"""

import json
import os
import pathlib
import signal
import sys
import tempfile
import time

from common.distributed import heartbeat
from timetotrain.launch.watch.signals import caught

STEP_SECONDS = 0.05


def rank() -> int:
    """This process's rank, from the environment that the launcher of either backend sets."""
    if "TF_CONFIG" in os.environ:
        return json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    return int(os.environ["HOROVOD_RANK"])


def fail(how: str) -> None:
    """Carries out a fault."""
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "abort":
        signal.signal(signal.SIGABRT, signal.SIG_DFL)
        os.abort()
    elif how == "abort late":  # Longer after the fault of another process than they start apart.
        time.sleep(0.5)
        fail("abort")
    elif how == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif how == "deaf":  # Freezes without a signal, and its heartbeat stops too.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        heartbeat._LINK._pipe, heartbeat._LINK._grace = -1, 1000.0
        time.sleep(1000)
    elif how.startswith("hang in "):  # Alive, with a heartbeat.
        heartbeat.at_step(6, part=how.removeprefix("hang in "))
        time.sleep(1000)
    elif how.startswith("abort: "):
        print(how, file=sys.stderr, flush=True)
        fail("abort")
    elif how.startswith("error: "):
        heartbeat.send(error=how.removeprefix("error: "))
        sys.exit(2)
    elif how.startswith("aborted error: "):  # A library aborts the process before it ends.
        heartbeat.send(error=how.removeprefix("aborted error: "), code=2)
        fail("abort")
    elif how == "lost":  # As the guard ends a process whose peer erred.
        heartbeat.send(lost="rank 1 computed wrong")
        sys.exit(75)
    elif how == "leave a file, and be killed":
        pathlib.Path(tempfile.gettempdir(), "left").touch()
        fail("kill")
    elif how == "sleep":
        time.sleep(1000)
    elif how.startswith("exit "):
        os._exit(int(how.removeprefix("exit ")))
    elif how == "raise":
        raise ArithmeticError("a fault")
    elif how == "term":
        os.kill(os.getpid(), signal.SIGTERM)
    elif how == "orphan":
        if os.fork() == 0:
            os.setsid()
            time.sleep(1000)
        os.kill(os.getpid(), signal.SIGKILL)


def log(path: pathlib.Path) -> None:
    """Begins a log, as rank 0 would when it is killed in the middle of a line."""
    from resnet.presets import PRESETS, hyperparameters
    from timetotrain.run.mllog import RunLog

    config = PRESETS["cpu-tiny"]
    run_log = RunLog(path, config)
    run_log.header(hyperparameters(config), False)
    run_log.init_stop()
    run_log.event("run_start", kind="INTERVAL_START")
    run_log._file._file.write(':::MLLOG {"namesp')
    run_log._file._file.flush()


def main() -> int:
    """Takes 40 steps, or stops on a signal; each process stops by itself, whereas the processes of a run agree."""
    orders = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
    stubborn = orders.get("stubborn", False)
    signals = []
    fail(orders.get(f"{rank()} imports", ""))
    heartbeat.start()

    def stop(number: int, _: object) -> None:
        signals.append(number)
        if orders.get("initializes"):  # As a run that a signal ends before its loop.
            heartbeat.send(error="SIGTERM during initialization")
            os._exit(143)
        heartbeat.send(signal=signal.Signals(number).name)

    for number in caught():
        signal.signal(number, stop)
    if "log" in orders and rank() == 0:
        log(pathlib.Path(orders["log"]))
    # Its faults happen in the first attempts only, if the order says in how many.
    attempt = pathlib.Path(orders.get("attempts", os.devnull))
    if "attempts" in orders:
        with open(f"{attempt}{rank()}", "a", encoding="utf-8") as file:
            file.write(".")
            heartbeat.send(start=file.tell() if orders.get("saves") else 0)
            if file.tell() > orders.get("faulty", 1):
                orders = {k: v for k, v in orders.items() if not k.isdecimal()}
    fail(orders.get(f"{rank()} begins", ""))
    heartbeat.phase("trains")
    seconds = {"input": 0.0, "step": 0.0}
    for step in range(int(orders.get("steps", 40))):
        time.sleep(STEP_SECONDS)
        for part in seconds:
            seconds[part] += orders.get(part, {}).get(str(rank()), 0.01)
        heartbeat.at_step(step + 1, dict(seconds))
        if step == 5:
            if "meet" in orders:  # All faults happen at once, however far apart the processes begin.
                pathlib.Path(orders["meet"], str(rank())).touch()
                while len(os.listdir(orders["meet"])) < sum(map(str.isdecimal, orders)):
                    time.sleep(0.01)
            fail(orders.get(str(rank()), ""))
            time.sleep(orders.get("long", 0))  # The rest of a long step.
        if signals and not stubborn:
            heartbeat.send(result=128 + signals[0])
            return 128 + signals[0]
    print(f"rank {rank()} done")
    heartbeat.send(result=orders.get("result", 0))
    return orders.get("result", 0)


if __name__ == "__main__":
    sys.exit(main())
