"""Attention under a pattern: the call, the planner, parts, masks and merging."""
