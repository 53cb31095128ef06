"""Checkpoints of Hugging Face as weft models: files, names, one reader per architecture."""
