"""A name means one thing across the four packages."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import linops

_ROOT = Path(linops.__file__).parents[1]
_TWICE = {
    "Beam",  # of a geometry, and as planar kernels take one
    "Gradient",  # `lo.Gradient` and `linops.stencils.Gradient`, which takes an order and a boundary
    "Loop",  # over bands in a program, and of compiled lanes
    "_Columns",  # of two models of projection
}


def test_a_class_name_is_used_once() -> None:
    places = defaultdict(list)
    for package in ("linops", "geometries", "sharding", "solvers"):
        for path in (_ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    places[node.name].append(str(path.relative_to(_ROOT)))
    twice = {name: files for name, files in places.items() if len(files) > 1}
    assert set(twice) <= _TWICE, twice
