"""The networks that lab/bench/ times, ours and the peers', by framework: `python -m lab.bench.contenders MODULE ARGS`.

`MODULE.make(*ARGS)` returns a function that runs N steps, and facts about the contender. Modules named torch_* and
jax_* run in interpreters that have PyTorch or JAX but none of this project's dependencies.
"""
