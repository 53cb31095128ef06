"""Parts that surround a mixer: norm, positions, embeddings, projections, padding."""
