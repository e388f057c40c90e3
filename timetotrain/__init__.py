"""The program: one command line around the benchmarks and the checker."""

__version__ = "0.1.0"
