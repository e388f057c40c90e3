"""Maintains the repository: builds Horovod and the documents, runs the tests, and lists the slow ones."""
