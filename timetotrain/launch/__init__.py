"""Starts a run's processes on this machine, watches them, and ends them all if one fails. TensorFlow-free.

python -m timetotrain launch --replicas=horovod --processes=4 -- python -m resnet --system=...

Starting: plan.py assigns processes to hosts and builds their environments; local.py starts this machine's processes;
rendezvous.py and elastic.py connect Horovod's processes; process.py tells a process its rank; preset.py and
commands.py start a preset with its cluster's launcher.
Watching: watch/ forwards output, detects failures and finds their cause.
Shared: children.py ends child processes with their parent; procfs.py reads /proc.
"""
