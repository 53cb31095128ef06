"""Attention among tokens sorted by bucket (Reformer) or by cluster (Routing Transformer)."""
