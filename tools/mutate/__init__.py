"""Puts faults into a copy of the project, one at a time, and says which of them the tests notice."""
