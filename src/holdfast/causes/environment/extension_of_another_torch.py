"""ENV021 extension-of-another-torch."""

from __future__ import annotations

from holdfast.causes.remedies import automatic, by_hand, disruptive
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.log_signals import LogSignal, Tier
from holdfast.core.treatments import Treatment

EXTENSION_OF_ANOTHER_TORCH = Cause(
    code="ENV021",
    name="extension-of-another-torch",
    summary="A compiled extension was built for another version of torch or of CUDA than the one "
    "that is installed.",
    what_happens="Extensions such as flash-attn, torchvision, apex or Transformer Engine call C++ "
    "functions of torch, whose names change between versions, and load CUDA libraries by major "
    "version. After an upgrade of torch, or with a wheel for another torch, CUDA or C++ ABI, the "
    "import fails on every rank that shares the environment.",
    shows_before="`pip check` reports conflicts; the name of the wheel states another torch "
    "(`torch2.4`), CUDA (`cu12`) or ABI (`cxx11abiFALSE`) than torch itself.",
    shows_during="Nothing hangs: the import raises within seconds.",
    shows_after="`undefined symbol: _ZN3c10...`, `libcudart.so.11.0: cannot open shared object "
    "file`, or `operator torchvision::nms does not exist`, the same on all ranks.",
    known_misses="A missing library also means that its package was not installed at all. An "
    "extension that loads, and was built with other headers, crashes later: segfault-in-worker is "
    "named then.",
    evidence_sources=(EvidenceSource.LOG,),
    signals=(
        LogSignal(
            name="extension-mismatch",
            tier=Tier.NAMED,
            confidence=0.85,
            sentence="a compiled extension does not match the installed torch or CUDA",
            patterns=(
                r"undefined symbol: _ZNK?(?:St|S_)?\d?[^ ]{0,3}(?:3c10|2at|5torch|8c10_cuda)",
                r"undefined symbol: (?:aoti_torch_|THP|PyTorch|cudnn|cublas)\w*",
                (
                    r"Error: lib(?:cudart|cudnn|cublas|cublasLt|cufft|curand|cusparse|cusparseLt"
                    r"|nvrtc|c10|c10_cuda|torch|torch_cuda|torch_cpu|torch_python|cupti|nvToolsExt)"
                    r"[\w-]{0,24}\.so[.\d]{0,12}: cannot open shared object"
                ),
                r"operator torch(?:vision|audio)::\w+ does not exist",
                (
                    r"detected CUDA version \([\d.]+\) mismatches the version that was used to "
                    r"compile"
                ),
                (
                    r"(?:Detected that PyTorch and torch(?:vision|audio)|Your installed "
                    r"torch(?:vision|audio)).{0,60}(?:compiled with different|not compatible)"
                ),
                "Couldn't load custom C\\+\\+ ops",
            ),
            examples=(
                (
                    "ImportError: /opt/venv/lib/python3.11/site-packages/flash_attn_2_cuda.cpython"
                    "-311-x86_64-linux-gnu.so: undefined symbol: _ZN3c104cuda9SetDeviceEi"
                ),
                (
                    "[rank0]: ImportError: /w/ext/fused.so: undefined symbol: "
                    "_ZNK2at6Tensor8data_ptrIfEEPT_v"
                ),
                (
                    "[rank1]: ImportError: libcudart.so.11.0: cannot open shared object file: No "
                    "such file or directory"
                ),
                "OSError: libcudnn_ops_infer.so.8: cannot open shared object file: No such file",
                "[rank3]: RuntimeError: operator torchvision::nms does not exist",
                (
                    "The detected CUDA version (12.4) mismatches the version that was used to "
                    "compile\nPyTorch (11.8). Please make sure to use the same CUDA versions.\n"
                    "RuntimeError: Error compiling objects for extension"
                ),
            ),
            counter_examples=(
                (
                    "Could not load dynamic library 'libcudart.so.11.0'; dlerror: "
                    "libcudart.so.11.0: cannot open shared object file: No such file or directory"
                ),
                (
                    "n1:5:9 [0] NCCL INFO dlvsym failed on mlx5dv_reg_dmabuf_mr - libmlx5.so.1: "
                    "undefined symbol: mlx5dv_reg_dmabuf_mr, version MLX5_1.25"
                ),
            ),
        ),
    ),
    alternatives=("nccl-version-mismatch", "package-installed-twice", "cuda-driver-mismatch"),
    treatment=Treatment.CODE,
    remedies=(
        automatic(
            "Compare torch's version, CUDA and C++ ABI with those of the extension's wheel.",
            'python -c "import torch; print(torch.__version__, torch.version.cuda, '
            'torch.compiled_with_cxx11_abi())"; python -m pip check',
        ),
        disruptive(
            "Install the wheel for this torch, or build the extension in this environment.",
            "python -m pip install --no-build-isolation --no-cache-dir --force-reinstall PACKAGE",
        ),
        by_hand("Pin torch and its extensions together in the image of the job."),
    ),
    sources=(
        "Dao-AILab/flash-attention#723",
        "Dao-AILab/flash-attention#1832",
        "Dao-AILab/flash-attention#784",
    ),
)
