"""The registry of whole models: what a saved folder's config.json names."""

from weft.registry import Registry

MODELS = Registry("model")
