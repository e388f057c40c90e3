"""Distributed training: backends, spatial partitioning, gradient sums, weight updates."""
