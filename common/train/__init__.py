"""Training: a benchmark's task, the step, the fused train-and-eval loop, checkpoints, events."""
