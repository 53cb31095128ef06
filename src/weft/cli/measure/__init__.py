"""Verbs that measure speed and memory."""
