"""The page that follows a run: learning curves, progress and examples, from the files beside its log."""
