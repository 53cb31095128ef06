"""Fronts: what makes fewer, wider tokens of a long input before a stack reads them."""
