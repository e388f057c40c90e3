"""Watches the processes of a run that common.launch has started, and says why it failed. TensorFlow-free.

loop.py is the watching itself, worker.py a process as the launcher sees it, heartbeat.py what a process tells about
itself (the only part that runs in the process), failure_cause.py which of several failed processes failed first,
slow_worker.py which one the others wait for, unfinished_log.py the end of a log whose process was killed.
"""
