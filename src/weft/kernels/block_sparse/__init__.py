"""Block-sparse attention: gathered in PyTorch, by Triton kernels, by FlexAttention."""
