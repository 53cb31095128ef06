"""Faster attention inside Transformers models, with their own weights."""
