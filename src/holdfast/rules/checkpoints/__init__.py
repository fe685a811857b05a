"""What is to be thought of checkpoints: pure rules over what facts.checkpoints saw.

kept     holdfast's own folders of checkpoints: what loading passes over, and why
whole    is every file there, as it was written, and does each tensor have all of its parts?
numbers  what stands in the tensors: NaN, nothing but zeros, copies that are not the same
moment   is it of one save, and finished?
verify   all of these as one verdict
compared two checkpoints against each other
"""
