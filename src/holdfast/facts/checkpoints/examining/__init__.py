"""Whether a checkpoint is whole and of one save, and what differs between two: looked at, not judged.

survey     everything that can be seen of one checkpoint
walking    one pass over its files, for all who want to see their bytes
numbers    NaN, infinities, nothing but zeros
coverage   whether pieces make a tensor up
copies     numbers that stand there more than once
comparing  two tensors held against each other
torn       what tells that files are of two saves
differing  two checkpoints of any formats held against each other
"""
