"""Objectives of sequences that are not text."""
