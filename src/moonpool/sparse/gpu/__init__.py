"""Rows read by a GPU where they lie: the mapping registered with CUDA, one kernel that gathers.

Needs torch and triton, and a CUDA device; without one Triton's interpreter runs the same kernel on
the CPU (TRITON_INTERPRET=1), for tests. Never run on a GPU yet.
"""

from moonpool.sparse.gpu.rows import GpuRows, why_no_gpu

__all__ = ["GpuRows", "why_no_gpu"]
