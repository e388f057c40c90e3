"""Answers whether a submission will be accepted, also while its runs are under way: `timetotrain accept TREE`."""
