"""Functions on tensors: no modules, no configs."""
