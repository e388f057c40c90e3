"""Networks that lab/bench/ times, ours and the peers', by framework: `python -m lab.bench.contenders MODULE ARGUMENTS`.

`MODULE.make(*ARGUMENTS)` gives a function that takes N steps, and what the contender says of itself. Modules named
torch_* and jax_* run in interpreters that have PyTorch or JAX and nothing that this project depends on.
"""
