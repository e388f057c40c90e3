"""Starts the processes of a run on this machine, watches them, and ends them all when one fails. TensorFlow-free.

python -m common.launch --replicas=horovod --processes=4 -- python -m resnet --system=...

plan.py says which process runs where and what its environment is, watch.py what happens while they run, heartbeat.py
what a process tells about itself, commands.py how each preset is started by the launchers of clusters.
"""
