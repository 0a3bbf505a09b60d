"""`cgls_into` and `sirt_into`: solves whose vectors are larger than memory.

The iterations are those of `cgls` and `sirt`; vectors lie in a `Workspace`, operators run from
store to store, and the solution is written into the caller's own store.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from linops.errors import ShapeError
from linops.linear_operator import LinearOperator
from linops.space import AnySpace
from linops.stores.protocol import flush
from linops.stores.tilewise import Stream, admit_stores
from solvers import controls
from solvers.cgls import _REFRESH
from solvers.elements import clip
from solvers.fingerprint import fingerprint
from solvers.measurement_weights import GRAZING, reciprocal
from solvers.result import (
    BREAKDOWN,
    CALLBACK_STOPPED,
    LEAST_SQUARES_REACHED,
    LIMIT_REACHED,
    RESIDUAL_REACHED,
    SolverResult,
)
from solvers.workspace import Vector, Workspace

__all__ = ["cgls_into", "sirt_into"]

_ELEMENTS = 1 << 20


def cgls_into(
    A: LinearOperator,
    source: Any,
    target: Any,
    *,
    iterations: int,
    workspace: Any,
    damp: float = 0.0,
    rtol: float = 0.0,
    atol: float = 0.0,
    normal_rtol: float = 0.0,
    block_elements: int | None = None,
    chunks: int | Mapping[str, int] | None = None,
    memory: float | None = None,
    callback: Any = None,
    progress: bool = False,
    resume: Any = None,
    checkpoint_every: int = 1,
) -> SolverResult:
    """`cgls` from store to store: minimise `|y - A x|^2 + damp^2 |x|^2` from zero.

    Parameters
    ----------
    A
        Any linear operator; a stack `vstack([A, G])` takes a tuple of stores as its source.
    source, target
        Stores of the measurements and of the solution (see `linops.stores`), without batch axes.
        The target holds the iterate while the solve runs.
    iterations
        The most to make; when resuming, in total.
    workspace
        A folder to be made for the vectors of the solve, and for the steps it resumes from.
    damp, rtol, atol, normal_rtol
        As for `cgls`.
    block_elements
        The most entries of a vector in hand at a time, 2^20 by default. Where it is given it also
        bounds the blocks of the operator, as far as its rule lets them be cut.
    chunks, memory
        Blocks of the operator, as `linops.stores.apply_into` takes them.
    callback
        `callback(iteration, residual, target)` after each iteration; `False` ends the solve.
    progress
        Whether to draw a bar (needs tqdm).
    resume
        True, to go on in `workspace` with a solve that was killed there; or another workspace, or
        a step of one. A resumed solve has the bits of one that was not interrupted.
    checkpoint_every
        How many iterations lie between two steps; the last one is always saved.

    Returns
    -------
    SolverResult
        Its `solution` is `target` itself.

    Raises
    ------
    ShapeError, DTypeError, ValueError, OSError, FileExistsError, CheckpointError
        For what cannot be solved, and for a workspace that exists; before the workspace is made or
        the target is written.
    """
    damp = controls.non_negative("damp", damp)
    normal_rtol = controls.non_negative("normal_rtol", normal_rtol)
    run = _Run(
        "cgls", A, source, target, iterations, rtol, atol, callback, progress, workspace, resume,
        checkpoint_every, block_elements, chunks, memory, {"damp": damp},
        {"r": A.codomain, "q": A.codomain, "p": A.domain, "s": A.domain}, ("r", "p"),
    )  # fmt: skip
    x, y, square = run.x, run.y, damp * damp
    r, q, p, s = (run.vectors[name] for name in "rqps")

    def normal() -> None:
        run.back([*r.stores], s)
        if square:
            s.set(lambda s, x: s - square * x, s, x)

    def residual() -> None:
        run.forth(x, q)
        r.set(np.subtract, y, q)

    with run:
        if run.found is None:
            x.set(np.zeros_like, x)
            r.set(lambda y: y, y)
            norm = math.sqrt(y.product(y))
            run.begin(norm, norm)
            normal()
            p.set(lambda s: s, s)
            g = p.product(p)
            run.save({"g": g})
        else:
            g = run.found["numbers"]["g"]
            run.begin(run.history[-1], math.sqrt(y.product(y)))
        bound = 0.0
        if normal_rtol and run.going:
            if run.found is not None:
                run.back([*y.stores], s)
            else:
                s.set(lambda p: p, p)
            bound = normal_rtol * math.sqrt(s.product(s))
            if math.sqrt(g) <= bound:
                run.stop(LEAST_SQUARES_REACHED, True)
        while run.going:
            if g == 0:
                run.stop(BREAKDOWN, False)
                break
            run.forth(p, q)
            curvature = q.product(q) + (square * p.product(p) if square else 0.0)
            if curvature == 0:
                run.stop(BREAKDOWN, False)
                break
            length = g / curvature
            x.set(lambda x, p, a=length: x + p * a, x, p)
            refreshed = (run.iteration + 1) % _REFRESH == 0
            if refreshed:
                residual()
            else:
                r.set(lambda r, q, a=length: r - q * a, r, q)
            rr = r.product(r)
            if not refreshed and math.sqrt(rr) <= run.bound:
                residual()
                rr = r.product(r)
            normal()
            following = s.product(s)
            p.set(lambda s, p, a=following / g: s + p * a, s, p)
            g = following
            small = bool(normal_rtol) and math.sqrt(g) <= bound
            run.record(math.sqrt(rr), {"g": g}, (LEAST_SQUARES_REACHED, True) if small else None)
        return run.result()


def sirt_into(
    A: LinearOperator,
    source: Any,
    target: Any,
    *,
    iterations: int,
    workspace: Any,
    relaxation: float = 1.0,
    bounds: Any = (0.0, None),
    rtol: float = 0.0,
    atol: float = 0.0,
    block_elements: int | None = None,
    chunks: int | Mapping[str, int] | None = None,
    memory: float | None = None,
    callback: Any = None,
    progress: bool = False,
    resume: Any = None,
    checkpoint_every: int = 1,
) -> SolverResult:
    """`sirt` from store to store, from zero, of an operator with the tag `"nonnegative"`.

    Takes, gives and raises what `cgls_into` does, with `relaxation` and `bounds` of `sirt`.
    """
    relaxation = controls.positive("relaxation", relaxation)
    low, high = controls.bounds_pair(bounds)
    if "nonnegative" not in A.tags or A.domain.is_complex:
        raise ValueError(
            f"sirt_into weighs by the sums of |A|, which A @ 1 gives only where no entry is "
            f"negative: {A.name} has no tag 'nonnegative' on real spaces"
        )
    run = _Run(
        "sirt", A, source, target, iterations, rtol, atol, callback, progress, workspace, resume,
        checkpoint_every, block_elements, chunks, memory,
        {"relaxation": relaxation, "bounds": [low, high]},
        {"r": A.codomain, "R": A.codomain, "C": A.domain, "s": A.domain}, (),
    )  # fmt: skip
    x, y = run.x, run.y
    r, R, C, s = (run.vectors[name] for name in ("r", "R", "C", "s"))
    with run:
        if run.found is None:
            x.set(np.zeros_like, x)
            r.set(lambda y: y, y)
            norm = math.sqrt(y.product(y))
            run.begin(norm, norm)
            run.save({})
        else:
            run.forth(x, r)
            r.set(np.subtract, y, r)
            run.begin(run.history[-1], math.sqrt(y.product(y)))
        if run.going:
            run.streams[0].run(_ones(A.domain), R.stores)
            least = [GRAZING * most for most in R.greatest()]
            for store, share in zip(R.stores, least, strict=True):
                Vector([store], R.count).set(
                    lambda v, share=share: reciprocal(v, 1.0, share), Vector([store], R.count)
                )
            run.streams[1].run(_ones(A.codomain), C.stores)
            C.set(lambda v: reciprocal(v, relaxation), C)
        while run.going:
            r.set(np.multiply, R, r)
            run.back(r.stores, s)
            x.set(lambda x, c, u: clip(x + c * u, low, high), x, C, s)
            run.forth(x, r)
            r.set(np.subtract, y, r)
            run.record(math.sqrt(r.product(r)), {}, None)
        return run.result()


class _Run:
    """What both solves share: admission, streams, history, stopping, steps."""

    def __init__(
        self,
        name: str,
        A: LinearOperator,
        source: Any,
        target: Any,
        iterations: Any,
        rtol: Any,
        atol: Any,
        callback: Any,
        progress: Any,
        workspace: Any,
        resume: Any,
        every: Any,
        elements: Any,
        chunks: Any,
        memory: Any,
        settings: Mapping[str, Any],
        spaces: Mapping[str, AnySpace],
        saved: tuple[str, ...],
    ) -> None:
        self.limit = controls.whole("iterations", iterations)
        self._rtol, self._atol = (
            controls.non_negative(n, v) for n, v in (("rtol", rtol), ("atol", atol))
        )
        self._callback = controls.callback_or_none(callback)
        self._every = controls.positive_count("checkpoint_every", every)
        if elements is not None:
            elements = controls.positive_count("block_elements", elements)
        count = _ELEMENTS if elements is None else elements
        self._target = target
        sources, targets, batch = admit_stores(A.H, source, target)
        if batch:
            raise ShapeError(
                f"{name}_into solves one problem, got the batch axes {batch}; solve its members "
                "one by one"
            )
        self.streams = tuple(Stream(B, chunks, memory, elements) for B in (A, A.H))
        self.x, self.y = Vector(targets, count), Vector(sources, count)
        self.y.require_finite("source")
        problem = {
            "algorithm": f"{name}_into",
            "domain": str(A.domain),
            "codomain": str(A.codomain),
            "precision": str(A.precision),
            "operator": fingerprint(A),
            "measurements": self.y.digest(),
            "block_elements": count,
            **{f"setting {key}": value for key, value in settings.items()},
        }
        self._bar = controls.bar(progress, f"{name}_into", self.limit, 0)
        self._space = Workspace(
            workspace, resume, problem, spaces, saved, self.x, count, self.limit
        )
        self.vectors, self.found = self._space.vectors, self._space.found
        self.iteration = 0 if self.found is None else int(self.found["iteration"])
        self.history: list[float] = [] if self.found is None else list(self.found["history"])
        self.bound = 0.0
        self._ended: tuple[str, bool] | None = None
        if self._bar is not None:
            self._bar.update(self.iteration)

    @property
    def going(self) -> bool:
        return self._ended is None and self.iteration < self.limit

    def forth(self, x: Vector, y: Vector) -> None:
        """y = A x."""
        self.streams[0].run(x.stores, y.stores)

    def back(self, y: list[Any], x: Vector) -> None:
        """x = A.H y."""
        self.streams[1].run(y, x.stores)

    def begin(self, residual: float, norm: float) -> None:
        if not self.history:
            self.history.append(residual)
        self.bound = self._atol + self._rtol * norm
        if residual <= self.bound:
            self.stop(RESIDUAL_REACHED, True)

    def stop(self, reason: str, converged: bool) -> None:
        if self._ended is None:
            self._ended = (reason, converged)

    def save(self, numbers: Mapping[str, float]) -> None:
        """Publish a step."""
        self._space.save(self.iteration, self.history, numbers)

    def record(
        self, residual: float, numbers: Mapping[str, float], ended: tuple[str, bool] | None
    ) -> None:
        """Record an iteration: history, callback, a step where one is due."""
        self.iteration += 1
        self.history.append(residual)
        if residual <= self.bound:
            self.stop(RESIDUAL_REACHED, True)
        if ended is not None:
            self.stop(*ended)
        if self._bar is not None:
            self._bar.update()
        due = self.iteration % self._every == 0 or not self.going
        if due:
            self.save(numbers)
        if self._callback is not None:
            answer = self._callback(self.iteration, residual, self._target)
            if controls.is_false(answer):
                self.stop(CALLBACK_STOPPED, False)
                if not due:
                    self.save(numbers)

    def result(self) -> SolverResult:
        for store in self.x.stores:
            flush(store)
        reason, converged = self._ended or (LIMIT_REACHED, False)
        return SolverResult(self._target, self.iteration, self.history, converged, reason)

    def __enter__(self) -> _Run:
        return self

    def __exit__(self, *error: Any) -> None:
        if self._bar is not None:
            self._bar.close()
        self._space.close()


class _Ones:
    """A store that is 1 everywhere and takes no memory."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self.shape, self.dtype = shape, dtype

    def read(self, slices: Any) -> np.ndarray:
        return np.ones(tuple(s.stop - s.start for s in slices), self.dtype)

    def write(self, slices: Any, block: Any) -> None:
        raise TypeError("a store of ones is only read")


def _ones(space: AnySpace) -> list[Any]:
    return [_Ones(member.shape, member.dtype) for member in space.members]
