"""Where compiled kernels meet Python: the thread pool and the intrinsics that kernels share.

Kernels themselves live beside the operators that call them. Nothing here imports Numba
before the first kernel module does.
"""
