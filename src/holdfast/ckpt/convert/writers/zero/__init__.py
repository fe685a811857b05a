"""Writers for DeepSpeed: ZeRO-1, 2 and 3 for any number of ranks, and universal.

groups     trained parameters by optimizer group, and what ZeRO cannot store
flat       flat buffers: which tensor range is where on which rank
states     what DeepSpeed's engine stores besides them
stage1 .. stage3, universal    the writers
"""
