"""Draws the page that follows a run (learning curves, progress, examples) from the files beside its log."""
