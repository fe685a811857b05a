"""DeepSpeed's own formats: ZeRO-1, 2 and 3 for any number of ranks, and universal.

groups    which parameters are trained, in which group of the optimizer, and what ZeRO cannot keep of it
flat      flat buffers: which run of which tensor stands where on which rank
states    what DeepSpeed's engine keeps beside them
stage1 .. stage3, universal    the writers
"""
