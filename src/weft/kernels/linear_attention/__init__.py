"""Linear attention: feature maps of queries and keys, plain and by Triton kernels."""
