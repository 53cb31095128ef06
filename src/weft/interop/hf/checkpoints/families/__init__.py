"""Readers of published checkpoints, one file per family of architectures."""
