"""Surveys one checkpoint and compares two; collects facts without judging them.

survey             everything that can be observed of one checkpoint
file_pass          one pass over its files for all consumers of their bytes
values             NaN, infinities, all-zero runs
coverage           whether shards cover a tensor
replicas           values stored more than once
tensor_comparison  two tensors compared
mixed_saves        evidence that files belong to different saves
differences        two checkpoints of any formats compared
"""
