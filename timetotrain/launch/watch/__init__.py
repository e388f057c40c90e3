"""Watches the processes of a run that common.launch has started, and says why it failed. TensorFlow-free.

loop.py watches. worker.py starts one process and keeps what the launcher knows of it; heartbeat.py runs in that process
and sends what it tells. failure_cause.py finds which of several failed processes failed first, slow_worker.py the one
that the others wait for; unfinished_log.py ends the log of a process that was killed.
"""
