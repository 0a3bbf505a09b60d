"""LSMR (Fong, Saunders 2011): least squares with a residual of the normal equations that falls."""

from __future__ import annotations

from typing import Any, Unpack

import numpy as np

from linops import arrays
from linops.linear_operator import LinearOperator
from solvers.controls import non_negative
from solvers.decorator import Controls, solver
from solvers.elements import add_scaled, choose, each, products, subtract, zeros
from solvers.loop import Solve
from solvers.result import LEAST_SQUARES_REACHED, SolverResult

__all__ = ["lsmr"]


@solver("A")
def lsmr(
    A: LinearOperator,
    y: Any,
    *,
    iterations: int,
    x0: Any = None,
    damp: float = 0.0,
    normal_rtol: float = 0.0,
    **controls: Unpack[Controls],
) -> SolverResult:
    """Minimise `|y - A x|^2 + damp^2 |x|^2`.

    Parameters
    ----------
    A, y, iterations, x0, damp
        As for `cgls`; with a start, `damp` holds the change from it.
    normal_rtol
        Ends where `|A.H r| <= normal_rtol |A| |r|`, with the norm of A as it is estimated: a bound
        on the relative backward error of a least-squares solution.
    **controls
        The residual is `|y - A x|`.

    Returns
    -------
    SolverResult
        With histories `normal_residual` (`|A.H r - damp^2 x|`), `operator_norm` (of A from below,
        in the norm of Frobenius) and `condition` (of A, from below): the forward error is at most
        `condition` times the backward error. For a batch the largest of its members.

    Notes
    -----
    D. C.-L. Fong, M. A. Saunders, SIAM J. Sci. Comput. 33 (2011), algorithm LSMR; estimates of
    sections 3 and 5. Unlike the residual of CGLS, that of the normal equations never rises.

    Examples
    --------
    >>> import numpy as np
    >>> import linops as lo
    >>> A = lo.Matrix(np.array([[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]]))
    >>> print(lsmr(A, np.array([1.0, 2.0, 2.0]), iterations=3).solution.round(6))
    [0.666667 0.5     ]
    """
    damp = non_negative("damp", damp)
    limit = non_negative("normal_rtol", normal_rtol)
    run = Solve(
        "lsmr", A, y, iterations=iterations, x0=x0, settings={"damp": damp},
        tolerances={"normal_rtol": limit}, **controls,
    )  # fmt: skip
    rows, columns = A.codomain, A.domain
    run.keep_state(x=columns, u=rows, v=columns, h=columns, hbar=columns, numbers=None)
    if run.restored is None:
        x, r = run.x, run.first_residual()
        beta = np.sqrt(run.begin_at(r))
        u = _over(r, beta)
        v = A.H @ u
        alpha = np.sqrt(products((columns, v, v))[0])
        v = _over(v, alpha)
        h, hbar = v, zeros(columns, run.batch, v)
        n = _Numbers.begin(alpha, beta)
    else:
        x, u, v, h, hbar = (run.restored[name] for name in ("x", "u", "v", "h", "hbar"))
        n = _Numbers(np.asarray(run.restored["numbers"], np.float64).copy())
        run.begin(run.history[-1])
    run.stop(n["zetabar"] == 0, LEAST_SQUARES_REACHED, True)
    while run.going:
        u = add_scaled(A @ v, -n["alpha"], u)
        beta = np.sqrt(products((rows, u, u))[0])
        u = _over(u, beta)
        v = add_scaled(A.H @ u, -beta, v)
        alpha = np.sqrt(products((columns, v, v))[0])
        v = _over(v, alpha)
        back, along, turn = n.rotate(alpha, beta, damp)
        hbar = add_scaled(h, -back, hbar)
        x = choose(run.active, add_scaled(x, along, hbar), x)
        h = add_scaled(v, -turn, h)
        residual = n.residual(damp)
        normal = np.abs(n["zetabar"])
        norm = np.sqrt(n["normA2"] - n["alpha"] ** 2)
        record = {
            "normal_residual": float(np.max(normal, initial=0.0)),
            "operator_norm": float(np.max(norm, initial=0.0)),
            "condition": float(np.max(n.condition(), initial=0.0)),
        }

        def snapshot(
            x: Any = x, u: Any = u, v: Any = v, h: Any = h, hbar: Any = hbar
        ) -> dict[str, Any]:
            return {"x": x, "u": u, "v": v, "h": h, "hbar": hbar, "numbers": n.values.copy()}

        small = normal <= limit * norm * residual
        if np.any(run.active & (residual <= run.bound)):
            r = subtract(run.y, A @ x)
            residual = np.sqrt(products((rows, r, r))[0])
        run.record(
            residual, x, snapshot, record, ended=(small | (normal == 0), LEAST_SQUARES_REACHED)
        )
    return run.result()


_NAMES = (
    "alpha", "zetabar", "alphabar", "rho", "rhobar", "cbar", "sbar",
    "betadd", "betad", "rhodold", "tautildeold", "thetatilde", "zeta", "d",
    "normA2", "maxrbar", "minrbar", "rhotemp",
)  # fmt: skip


class _Numbers:
    """The scalars of the recurrences, one a member of the batch, by the names of the paper."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values

    @classmethod
    def begin(cls, alpha: np.ndarray, beta: np.ndarray) -> _Numbers:
        numbers = cls(np.zeros((len(_NAMES), *np.shape(alpha))))
        start = {
            "alpha": alpha, "zetabar": alpha * beta, "alphabar": alpha, "rho": 1, "rhobar": 1,
            "cbar": 1, "betadd": beta, "rhodold": 1, "normA2": alpha**2, "minrbar": 1e100,
        }  # fmt: skip
        for name, value in start.items():
            numbers[name] = value
        return numbers

    def __getitem__(self, name: str) -> np.ndarray:
        return np.asarray(self.values[_NAMES.index(name)])

    def __setitem__(self, name: str, value: Any) -> None:
        self.values[_NAMES.index(name)] = value

    def rotate(
        self, alpha: np.ndarray, beta: np.ndarray, damp: float
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """One step of both factorisations: the factors of hbar, of x and of h."""
        n = {name: self[name].copy() for name in _NAMES}
        chat, shat, alphahat = _givens(n["alphabar"], np.full_like(alpha, damp))
        rhoold = n["rho"]
        c, s, rho = _givens(alphahat, beta)
        thetanew = s * alpha
        alphabar = c * alpha
        rhobarold, zetaold = n["rhobar"], n["zeta"]
        thetabar = n["sbar"] * rho
        rhotemp = n["cbar"] * rho
        cbar, sbar, rhobar = _givens(rhotemp, thetanew)
        zeta = cbar * n["zetabar"]
        zetabar = -sbar * n["zetabar"]
        back = _share(thetabar * rho, rhoold * rhobarold)
        along = _share(zeta, rho * rhobar)
        turn = _share(thetanew, rho)
        # The residual, section 5.1 of the paper.
        betaacute, betacheck = chat * n["betadd"], -shat * n["betadd"]
        betahat, betadd = c * betaacute, -s * betaacute
        thetatildeold = n["thetatilde"]
        ctildeold, stildeold, rhotildeold = _givens(n["rhodold"], thetabar)
        thetatilde = stildeold * rhobar
        rhodold = ctildeold * rhobar
        betad = -stildeold * n["betad"] + ctildeold * betahat
        tautildeold = _share(zetaold - thetatildeold * n["tautildeold"], rhotildeold)
        # The condition, section 5.3.
        first = n["maxrbar"] == 0
        maxrbar = np.where(first, rhobarold, np.maximum(n["maxrbar"], rhobarold))
        minrbar = np.where(first, n["minrbar"], np.minimum(n["minrbar"], rhobarold))
        new = {
            "alpha": alpha, "zetabar": zetabar, "alphabar": alphabar, "rho": rho,
            "rhobar": rhobar, "cbar": cbar, "sbar": sbar, "betadd": betadd, "betad": betad,
            "rhodold": rhodold, "tautildeold": tautildeold, "thetatilde": thetatilde,
            "zeta": zeta, "d": n["d"] + betacheck**2, "normA2": n["normA2"] + beta**2 + alpha**2,
            "maxrbar": maxrbar, "minrbar": minrbar, "rhotemp": rhotemp,
        }  # fmt: skip
        for name, value in new.items():
            self[name] = value
        return back, along, turn

    def residual(self, damp: float) -> np.ndarray:
        """|(y, 0) - (A, damp) x|."""
        taud = _share(self["zeta"] - self["thetatilde"] * self["tautildeold"], self["rhodold"])
        return np.asarray(np.sqrt(self["d"] + (self["betad"] - taud) ** 2 + self["betadd"] ** 2))

    def condition(self) -> np.ndarray:
        """An estimate of the condition number, from below."""
        rhotemp = np.abs(self["rhotemp"])
        low = np.minimum(self["minrbar"], rhotemp)
        return np.asarray(_share(np.maximum(self["maxrbar"], rhotemp), low))


def _givens(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    length = np.hypot(a, b)
    return np.where(length == 0, 1.0, _share(a, length)), _share(b, length), length


def _share(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.asarray(np.where(b == 0, 0.0, a / np.where(b == 0, 1.0, b)))


def _over(x: Any, length: np.ndarray) -> Any:
    """`x / length`, 0 where the length is."""
    return add_scaled(
        each(lambda part: arrays.namespace(part).zeros_like(part), x),
        _share(np.ones_like(length), length),
        x,
    )
