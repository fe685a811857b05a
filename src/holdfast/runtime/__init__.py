"""What runs inside the training processes and the launcher, and the only room that imports torch.

Here stand the bootstrap in front of the user's script, the recorder, the injected faults and the elastic agent. Nothing
in here judges: it leaves traces that ``holdfast.facts`` reads, and asks hooks that ``holdfast.actions`` supplies.
"""
