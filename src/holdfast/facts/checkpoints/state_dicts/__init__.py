"""What is what in nested dicts of tensors, whoever saved them.

model       the model's part of a file
sections    which part is the model's, which the optimizer's
optimizers  the optimizer's state, by name
dealing     which parameters the numbers of an optimizer stand for
naming      optimizers by number, in torch.distributed's formats
kinds       which tensors are frozen, which are buffers
ties        which names stand for the same weight
values      whatever else is there, told by its path
"""
