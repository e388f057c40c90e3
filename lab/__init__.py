"""The lab: benchmarks against named peers (lab/bench) and studies on real data (lab/studies)."""
