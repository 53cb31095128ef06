"""Verbs that train: one model, several compared, one part changed at a time."""
