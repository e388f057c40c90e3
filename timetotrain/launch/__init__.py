"""Starts a run's processes on this machine, watches them, and ends them all if one fails. TensorFlow-free.

timetotrain launch --replicas=horovod --processes=4 -- python -m resnet --system=...

Begin with plan.py (processes on hosts), local.py (this machine's) and watch/; commands.py starts a preset with its
cluster's launcher.
"""
