"""Builds the submission tree that `package` writes."""
