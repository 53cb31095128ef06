"""Clients of a bank who do not exist: a benchmark whose best possible score is known."""
