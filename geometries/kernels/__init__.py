"""Compiled projection kernels: NumPy arrays in and out, no operators, no algebra.

Imported by the projector on its first use, since every module here imports Numba.
"""
