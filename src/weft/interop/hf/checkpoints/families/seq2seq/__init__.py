"""Readers of encoder-decoders."""
