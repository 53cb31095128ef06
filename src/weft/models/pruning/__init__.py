"""Pruning of attention heads and layers."""
