"""Supplies the presets to the models and compilers of systems/: the verbs forecast, rent, why and systems."""
