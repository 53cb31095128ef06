"""Verbs that use a trained model."""
