"""The lab: measurements beside named peers (lab/bench) and studies on real data (lab/studies)."""
