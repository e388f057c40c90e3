"""Starts the processes of a run on this machine, watches them, and ends them all when one fails. TensorFlow-free.

python -m common.launch --replicas=horovod --processes=4 -- python -m resnet --system=...

Starting: plan.py assigns processes to hosts and makes their environments, local.py starts those of this machine,
rendezvous.py and elastic.py connect Horovod's processes, process.py tells a process its rank, preset.py and commands.py
start a preset by the launcher of its cluster.
Watching: watch/ forwards output, notices failures and finds their cause.
For everything that starts processes: children.py ends child processes with their parent, procfs.py reads /proc.
"""
