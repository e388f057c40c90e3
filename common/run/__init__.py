"""One run from the command line to its log: what it writes and what it prints."""
