"""Tools of the repository itself: how Horovod is built, how the documents are made."""
