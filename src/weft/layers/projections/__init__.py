"""Projections around attention: dense matrices, and factored ones with few parameters."""
