"""How derivative machinery of other libraries meets declared adjoints."""

from __future__ import annotations
