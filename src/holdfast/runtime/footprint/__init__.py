"""What a module of the user's own needs of memory: its weights counted, or its training step run on fake tensors.

The way in for the command: :func:`describe` and :func:`simulate` take ``file.py:function`` or
``package.module:function``, load it in a process of its own with limits on time and memory, and import no torch. The
function returns the module, built as for training (in fp32, say); or a pair of the module and ``step(module,
micro_batch, sequence)``, which returns the loss, where the module does not simply take token ids.

``describing.py`` and ``shapes.py`` count; ``stepping.py`` and ``simulating.py`` run a step under torch's fake process
group; ``tracking.py`` has all of torch's private names.
"""

from holdfast.runtime.footprint.asking import Limits, describe, simulate

__all__ = ["Limits", "describe", "simulate"]
