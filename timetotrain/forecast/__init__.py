"""Supplies the presets to the models and compilers of systems/: `timetotrain forecast`, `systems compile`."""
