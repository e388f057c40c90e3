"""Optimizers, their fused kernels, and learning-rate schedules."""
