"""Which kernel runs each operation, and why: the choices, the rules, and how to see or force them.

`choice` holds the answer, `fast` the rules of kernels that replace plain PyTorch in one mechanism,
`context` what is noted, forced or assumed while a block of code runs. The rules of attention under
a pattern are in `attend/planner.py`.
"""
