"""Reads the submitted code: configuration files beside the logs' settings, and what has no place in it."""
