"""Puts the presets before the models and compilers of systems/: `timetotrain forecast`, `systems compile`."""
