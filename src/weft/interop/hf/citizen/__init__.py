"""weft's models as Transformers' own: configs, model classes, states as caches, folders."""
