"""Memory of a user's module: count its parameters, or run its training step on fake tensors.

:func:`describe_module` and :func:`simulate_step` take ``file.py:function`` or
``package.module:function`` and load it in a separate process with limits on time and memory; they
import no torch. The function returns the module, built as for training (in fp32, say), or a pair of
the module and ``step(module, micro_batch, sequence)``, which returns the loss, if the module does
not simply take token ids.

``description`` and ``shapes`` count; ``training_step`` and ``simulation`` run a step under torch's
fake process group; ``tracking`` contains all private names of torch.
"""

from holdfast.plan.torch_tracing.client import TraceLimits, describe_module, simulate_step

__all__ = ["TraceLimits", "describe_module", "simulate_step"]
