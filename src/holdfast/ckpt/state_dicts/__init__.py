"""Interprets nested state_dicts from any framework.

model             the model's part of a file
sections          which part is the model's and which the optimizer's
optimizers        the optimizer's state by parameter name
optimizer_params  which parameters the optimizer's numbers stand for
naming            numbered optimizers in torch.distributed's formats
kinds             which tensors are frozen parameters and which are buffers
ties              which names share one weight
values            all other data, by path
"""
