"""Puts faults into a copy of the project, one at a time, and reports which ones the tests notice."""
