"""Starts a run's processes on this machine, watches them, and ends them all if one fails. TensorFlow-free.

python -m timetotrain launch --replicas=horovod --processes=4 -- python -m resnet --system=...

Starting: plan.py assigns processes to hosts and builds their environments; local.py starts this machine's processes;
commands.py starts a preset with its cluster's launcher.
Watching: watch/ forwards output, detects failures and finds their cause.
Shared: children.py ends child processes with their parent; procfs.py reads /proc.
"""
