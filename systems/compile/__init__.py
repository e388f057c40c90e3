"""Compiles a preset's steps for absent TPUs and GPUs, and keeps the compilers' reports."""
