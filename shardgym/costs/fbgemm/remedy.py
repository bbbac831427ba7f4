"""What to do when FBGEMM does not start, going by what it said."""

from __future__ import annotations

import re

#: What the complaint contains, and what to do about it.
_KNOWN = (
    (
        r"libcuda\.so|libnvidia-ml\.so|NVIDIA driver",
        "the CUDA builds of torch and FBGEMM need a driver that fits; without a GPU install shardgym's extra 'cpu'",
    ),
    (
        r"no kernel image",
        "the installed torch or FBGEMM has no kernels for this GPU; use device='cpu', or builds that support it",
    ),
    (
        r"CUDA.*out of memory",
        "something else holds the GPU's memory; end it, or name another GPU in CUDA_VISIBLE_DEVICES",
    ),
    (r"'CUDA' backend", "this is FBGEMM's CPU build; for the GPU replace it by shardgym's extra 'gpu'"),
)


def known_remedy(problem: str) -> str:
    """Return what to do about a complaint of torch or FBGEMM, "" when it is not one of those known here."""
    return next((advice for pattern, advice in _KNOWN if re.search(pattern, problem, re.IGNORECASE)), "")


def remedy(problem: str) -> str:
    """Return what to do about a complaint; when it is not a known one, the pair of versions is the likeliest cause."""
    return known_remedy(problem) or _pair()


def _pair() -> str:
    from importlib.metadata import distributions

    names = ("torch", "fbgemm-gpu", "fbgemm-gpu-cpu")
    found = sorted({f"{d.name} {d.version}" for d in distributions() if d.name.lower().replace("_", "-") in names})
    advice = "each fbgemm-gpu fits one torch, reinstall the pair with shardgym's extra 'cpu', or 'gpu' with CUDA"
    return f"found {', '.join(found)}; {advice}"
