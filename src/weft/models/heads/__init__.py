"""Heads: from hidden states to classes and tokens."""
