"""Sums, products, stacks, adjoints and blocks: how operators combine, and how trees simplify."""

from __future__ import annotations
