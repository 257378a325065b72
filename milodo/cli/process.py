"""Settings of this process, for many small steps and few words; called by programs, never by importing a module."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4
"""From malloc.h of the GNU C library."""
FATAL = 3
"""Of the levels of torch's C++ log; the default is 1, warnings."""


def keep_freed_memory() -> bool:
    """Lets malloc keep what tensors free, instead of handing it to the system and faulting it in again at the next step.

    A step allocates and frees tensors of a megabyte or so; by default each comes as fresh pages, and mixing 32 instances on
    ring(10) at d = 300 takes 1.9 ms instead of 0.23 (benchmarks/step.py choices). Returns whether it could be set: only
    glibc has it.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return False
    # Up to 2 GB of freed memory are kept; nothing comes by mmap, which always hands over fresh pages.
    settings = {M_TRIM_THRESHOLD: (1 << 31) - 1, M_TOP_PAD: 1 << 27, M_MMAP_MAX: 0}
    return all(mallopt(which, value) for which, value in settings.items())


def silence_torch() -> None:
    """Keeps torch's C++ from writing pages of stack frames about a connection that failed: we say it in a sentence.

    Who has set the variable otherwise wants to see them. It is read when torch is imported, which may have happened already.
    """
    if os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL") == "FATAL" and "torch" in sys.modules:
        with contextlib.suppress(OSError, ValueError):
            ctypes.c_int.in_dll(ctypes.CDLL("libc10.so"), "FLAGS_caffe2_log_level").value = FATAL
