"""Shows a run from the files next to its log: a page (learning curves, progress, examples), or TensorBoard's events."""
