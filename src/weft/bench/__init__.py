"""Measurements: attention layers and cores, gated, interleaved and stamped."""
