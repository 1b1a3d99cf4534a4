"""The network, from characters to layers, and the loss. It is independent of data and files."""

import torch

# MKL 2024.2, which is part of torch, chooses the code of a function when it is first called. If two
# threads do this at the same time, one of them can compute with errors of 1e-4
# (pytorch/pytorch#188792). So one thread first calls each function that we use.
FUNCTIONS_OF_MKL = ("exp", "expm1", "log", "sqrt", "tanh")
for _name in FUNCTIONS_OF_MKL:
    for _dtype in (torch.float32, torch.float64):
        getattr(torch, _name)(torch.ones(1, dtype=_dtype))
