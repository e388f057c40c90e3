"""Compiles a preset's steps for TPUs and GPUs that need not be present, and reports what the compilers say."""
