"""Starts the processes of a run on this machine, watches them, and ends them all when one fails. TensorFlow-free.

python -m common.launch --replicas=horovod --processes=4 -- python -m resnet --system=...

Starting: plan.py says which process runs where and what its environment is, local.py starts those of this machine,
rendezvous.py and elastic.py tell Horovod's processes of one another, process.py tells a process which one it is,
preset.py and commands.py start a preset by the launcher of its cluster.
Watching: watch/ says what happens while the processes run, and why a run failed.
For all that starts processes: children.py, which ends them with their parent, procfs.py and modules.py.
"""
