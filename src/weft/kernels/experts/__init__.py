"""Tokens sorted by expert, and matrix products for each group."""
