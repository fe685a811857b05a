"""Training on GPUs of unequal speed and memory, with the result of a single process.

speed_probe         how fast each rank is, and how much fits into its memory
batch_allocation    divide a global batch by speed and memory
sampler             which rank gets which samples
loss_weights        the weight of each rank's loss
precision           the precision that all ranks compute in
pipeline            the pipeline stages of a configuration file
grouped_reduction   gradients reduced within groups of ranks first
rebalancer          new shares when a rank slows down
exchange            small values exchanged between ranks, in collectives with timeouts
"""
