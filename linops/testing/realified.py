"""Matrices over the reals: what every operator is, whatever its spaces are.

A complex entry counts as two numbers, member after member, all real parts of a member before its
imaginary parts. In this form composition is the matrix product and the adjoint is the transpose,
also for operators between a real and a complex space, which have no complex matrix of their own.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from linops.linear_operator import LinearOperator
from linops.space import AnySpace, ProductSpace
from linops.testing.subject import elements, host

__all__ = ["complex_matrix", "dimension", "extend", "real_matrix", "realify", "signs"]


def dimension(space: AnySpace) -> int:
    """Real numbers in an element."""
    return sum(member.size * (2 if member.is_complex else 1) for member in space.members)


def real_matrix(operator: LinearOperator) -> np.ndarray:
    """The matrix of an operator over the reals, in double precision, from one batched apply."""
    n = dimension(operator.domain)
    unit, parts, start = np.eye(n), [], 0
    for member in operator.domain.members:
        part = unit[:, start : start + member.size]
        start += member.size
        if member.is_complex:
            part = part + 1j * unit[:, start : start + member.size]
            start += member.size
        parts.append(np.ascontiguousarray(part.reshape(n, *member.shape).astype(member.dtype)))
    batch: Any = tuple(parts) if isinstance(operator.domain, ProductSpace) else parts[0]
    columns = []
    for part, member in zip(
        elements(host(operator(batch))), operator.codomain.members, strict=True
    ):
        flat = part.reshape(n, member.size)
        columns.append(flat.real.astype("float64"))
        if member.is_complex:
            columns.append(flat.imag.astype("float64"))
    return np.concatenate(columns, axis=1).T


def realify(matrix: np.ndarray, domain: AnySpace, codomain: AnySpace) -> np.ndarray:
    """The real form of a matrix between plain spaces.

    Between a real and a complex space the complex matrix is meant: its real part is what a complex
    domain gives in a real codomain.
    """
    real, imaginary = np.real(matrix), np.imag(matrix)
    rows = [[real, -imaginary] if domain.is_complex else [real]]
    if codomain.is_complex:
        rows.append([imaginary, real] if domain.is_complex else [imaginary])
    return np.block(rows).astype("float64")


def extend(matrix: np.ndarray, domain: AnySpace, codomain: AnySpace) -> np.ndarray:
    """The real form of the complex extension of an operator between real spaces."""
    columns = [member.size for member in domain.members]
    rows = [member.size for member in codomain.members]
    out, top = [], 0
    for height in rows:
        for half in (0, 1):
            line, left = [], 0
            for width in columns:
                piece = matrix[top : top + height, left : left + width]
                line += [piece, 0 * piece] if half == 0 else [0 * piece, piece]
                left += width
            out.append(np.concatenate(line, axis=1))
        top += height
    return np.concatenate(out)


def signs(space: AnySpace) -> np.ndarray:
    """What conjugation does to the numbers of an element: -1 for imaginary parts."""
    return np.concatenate(
        [
            np.concatenate([np.ones(m.size), -np.ones(m.size if m.is_complex else 0)])
            for m in space.members
        ]
    )


def complex_matrix(matrix: np.ndarray, domain: AnySpace, codomain: AnySpace) -> np.ndarray:
    """The matrix with one row an entry, from its real form; complex where either space is."""
    tall, top = [], 0
    for member in codomain.members:
        rows: Any = matrix[top : top + member.size]
        top += member.size
        if member.is_complex:
            rows = rows + 1j * matrix[top : top + member.size]
            top += member.size
        tall.append(rows)
    high = np.concatenate(tall)
    wide, left = [], 0
    for member in domain.members:
        columns = high[:, left : left + member.size]
        left += member.size
        if member.is_complex:
            if not codomain.is_complex:
                columns = columns - 1j * high[:, left : left + member.size]
            left += member.size
        wide.append(columns)
    return np.concatenate(wide, axis=1)
