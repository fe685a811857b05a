"""A package is not installed on any rank."""

import torch.distributed as dist

dist.init_process_group("gloo")
import a_package_that_nobody_installed  # noqa: E402,F401
