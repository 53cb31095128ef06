"""Pathfinder: images of dashed curves, drawn by us."""
