"""Maintains the repository: builds Horovod and the documents, and lists the slow tests."""
