"""Attention under a pattern inside a Transformers model: functions, masks, caches."""
