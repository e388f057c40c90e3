"""Configuration of a run: schema, presets, overrides, checks, steps and epochs, digests, `--system=here`."""
