"""Total generalized variation of second order: images that are affine in patches.

`TGV(u) = min over w of a1 |G u - w| + a0 |E w|` (Bredies, Kunisch, Pock, 2010), with the gradient
G and the symmetrized gradient E. The minimization over w is left to the solver: the functional
lives on pairs (u, w).
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from linops import arrays
from linops.algebra.stacks import hstack, vstack
from linops.arrays import Array
from linops.elementary.diagonal import Diagonal
from linops.elementary.identity import Zero
from linops.functionals.composed import ComposedFunctional
from linops.functionals.functional import plain, positive_number
from linops.functionals.norms import GroupL1
from linops.functionals.separable_sum import separable
from linops.linear_operator import LinearOperator
from linops.rule import Axis, Rule
from linops.space import Space
from linops.stencils.gradient import Gradient

__all__ = ["SymmetrizedGradient", "TotalGeneralizedVariation"]


class SymmetrizedGradient(LinearOperator):
    """`(D_i w_j + D_j w_i) / 2` of a vector field w, by forward differences.

    Parameters
    ----------
    space
        That of the image; the domain is that of its gradients, `Gradient(space).codomain`.

    Notes
    -----
    The codomain has the `d (d + 1) / 2` entries of a symmetric matrix along its first axis, the
    diagonal first; the others times `sqrt(2)`, so that the Euclidean norm along that axis is the
    Frobenius norm of the matrix.
    """

    batched = True
    _serves_complex: ClassVar[bool] = True

    def __init__(self, space: Space) -> None:
        G = Gradient(space)
        d = space.ndim
        fields = G.codomain.members[0]
        codomain = Space((d * (d + 1) // 2, *space.shape), space.dtype, fields.axes)
        names = [axis.name for axis in G.rule.codomain[0]]
        inner = (Axis(names[0], splits=False), *(Axis(name, 1) for name in names[1:]))
        outer = (Axis("entry" if "entry" not in names else "entry0"), *map(Axis, names[1:]))
        super().__init__(fields, codomain, Rule((inner,), (outer,)))
        self.gradient = G
        pairs = [(i, j) for i in range(d) for j in range(i + 1, d)]
        self.pairs = tuple(pairs)

    def _apply(self, w: Array) -> Array:
        xp, d = arrays.namespace(w), len(self.gradient.codomain.members[0].shape) - 1
        g = self.gradient._apply(w)
        at = self._at(d)
        parts = [g[at(i, i)] for i in range(d)]
        parts += [(g[at(i, j)] + g[at(j, i)]) * math.sqrt(0.5) for i, j in self.pairs]
        return xp.stack(parts, axis=-d - 1)

    def _apply_adjoint(self, e: Array) -> Array:
        xp, d = arrays.namespace(e), len(self.gradient.codomain.members[0].shape) - 1
        rest = (slice(None),) * d
        at = {(i, i): e[(..., i, *rest)] for i in range(d)}
        for k, (i, j) in enumerate(self.pairs):
            at[i, j] = at[j, i] = e[(..., d + k, *rest)] * math.sqrt(0.5)
        rows = [xp.stack([at[j, i] for i in range(d)], axis=-d - 1) for j in range(d)]
        return self.gradient._apply_adjoint(xp.stack(rows, axis=-d - 2))

    def _at(self, d: int) -> Any:
        return lambda j, i: (..., j, i, *(slice(None),) * d)


class TotalGeneralizedVariation(ComposedFunctional):
    """`first |G u - w| + second |E w|` of a pair (u, w): image and vector field, isotropic.

    Parameters
    ----------
    space
        That of the image u, real or complex; distances are its spacing.
    first, second
        Weights > 0 of both norms.

    Notes
    -----
    It is `f @ K` with `f = tgv.outer`, a sum of `GroupL1`, and `K = tgv.inner`, which maps (u, w)
    to (G u - w, E w); so `pdhg(tgv.outer, data, tgv.inner)` and `admm(data, [(tgv.outer,
    tgv.inner)])` minimize it, data being a functional of (u, w). w is not compared where G u has
    no neighbor: affine images cost nothing.
    """

    def __init__(self, space: Space, first: Any = 1.0, second: Any = 2.0) -> None:
        space = plain(space, "TotalGeneralizedVariation")
        G, E = Gradient(space), SymmetrizedGradient(space)
        fields = G.codomain.members[0]
        inside = np.ones(fields.shape, space.dtype)
        for axis in range(space.ndim):
            inside[axis].swapaxes(0, axis)[-1:] = 0
        K = vstack(
            [hstack([G, -1.0 * Diagonal(inside, fields)]), hstack([Zero(space, E.codomain), E])]
        )
        norms = [GroupL1(fields, 0), GroupL1(E.codomain.members[0], 0)]
        sizes = (positive_number(first, "first"), positive_number(second, "second"))
        outer = separable([size * norm for size, norm in zip(sizes, norms, strict=True)])
        super().__init__([outer, K])
