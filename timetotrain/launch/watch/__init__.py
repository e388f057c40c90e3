"""Watches the processes that timetotrain launch started, and explains a run's failure. TensorFlow-free.

Begin with loop.py. worker.py is one process as the launcher knows it, from what common/distributed/heartbeat.py sends.
"""
