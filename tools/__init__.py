"""Maintains the repository: tests and faults for them, documents, containers, Horovod, tables of published results."""
