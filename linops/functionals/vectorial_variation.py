"""Total variation of images with channels (colours, energies, time) that share their edges.

At every place the gradients of all channels make a matrix; its Frobenius norm is the vectorial
total variation (Blomgren, Chan, 1998), its nuclear norm favours gradients that are parallel
(Holt, 2014).
"""

from __future__ import annotations

from linops.algebra.frames import Repeat
from linops.elementary.axes import axis_number
from linops.elementary.shape import Reshape, Transpose
from linops.functionals.composed import ComposedFunctional
from linops.functionals.functional import Functional, plain
from linops.functionals.norms import GroupL1
from linops.functionals.nuclear_norm import NuclearNorm
from linops.linear_operator import LinearOperator
from linops.space import Space
from linops.stencils.gradient import Gradient

__all__ = ["VectorialTotalVariation"]


class VectorialTotalVariation(ComposedFunctional):
    """Sum over positions of a norm of the gradients of all channels together.

    Parameters
    ----------
    space
        The domain, real or complex; distances are its spacing, where it has one.
    axis
        That of the channels, by name or number; the first by default.
    norm
        `"frobenius"`, the root of the sum of all squares, or `"nuclear"`, the sum of the singular
        values of the matrix of channels and components.

    Raises
    ------
    ValueError
        For another norm.

    Notes
    -----
    It is `f @ K` with `f = tv.outer` and `K = tv.inner`, the gradients of the channels: solvers
    that keep an operator apart take both, `pdhg(tv.outer, data, tv.inner)`.
    """

    def __init__(self, space: Space, axis: str | int = 0, *, norm: str = "frobenius") -> None:
        space = plain(space, "VectorialTotalVariation")
        if norm not in ("frobenius", "nuclear"):
            raise ValueError(
                f"VectorialTotalVariation: norm is 'frobenius' or 'nuclear', got {norm!r}"
            )
        number = axis_number(space, axis)
        rest = [i for i in range(space.ndim) if i != number]
        plane = Space(
            [space.shape[i] for i in rest],
            space.dtype,
            space.axes and [space.axes[i] for i in rest],
            space.spacing and [space.spacing[i] for i in rest],
        )
        name = space.axes[number] if space.axes else "channel"
        terms: list[LinearOperator] = [Repeat(Gradient(plane), space.shape[number], name)]
        if number:
            terms.append(Transpose(space, (number, *rest)))
        matrices = terms[0].codomain.members[0]
        if norm == "nuclear":
            outer: Functional = NuclearNorm(matrices, (0, 1))
        else:
            channels, components, *places = matrices.shape
            names = matrices.axes and ("entry", *matrices.axes[2:])
            terms.insert(0, Reshape(matrices, (channels * components, *places), names))
            outer = GroupL1(terms[0].codomain.members[0], 0)
        super().__init__([outer, *terms])
