"""Looks at the submitted code: the configurations that logs name, and what has no place in it."""
