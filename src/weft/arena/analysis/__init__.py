"""Analyses of a model: FLOPs, attention span, early exits."""
