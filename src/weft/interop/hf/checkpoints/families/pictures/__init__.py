"""Readers of models of pictures."""
