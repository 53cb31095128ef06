"""Run folders and checkpoints that survive a kill at any moment."""
