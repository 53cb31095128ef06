"""Trunks: from tokens to hidden states."""
