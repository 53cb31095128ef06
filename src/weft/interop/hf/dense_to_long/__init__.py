"""A dense pretrained Transformers model as a long, sparse one: `weft convert`."""
