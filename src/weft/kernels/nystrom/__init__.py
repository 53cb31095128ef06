"""Attention through landmarks (Nyströmformer)."""
