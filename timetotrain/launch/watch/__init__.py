"""Watches the processes that timetotrain launch started, and explains a run's failure. TensorFlow-free.

loop.py watches. worker.py starts one process and records what the launcher knows about it; heartbeat.py runs inside
that process and sends the facts. failure_cause.py finds which of several failed processes failed first. slow_worker.py
finds the process that the others wait for. unfinished_log.py ends a killed process's log.
"""
