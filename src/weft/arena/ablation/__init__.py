"""Ablations: a base model and its modifications, ranked."""
