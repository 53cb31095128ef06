"""Clients and their events: what becomes of a client, from what happened before."""
