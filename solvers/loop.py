"""What every iteration shares: admission, history, stopping, callbacks, progress, checkpoints.

A solver builds a `Solve`, calls `begin` with the first residual norms, loops while `run.going`,
calls `record` after each iteration, and ends with `result`. What an iteration does, and what
state it needs, is the solver's own business.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from linops import arrays
from linops.arguments import hold
from linops.errors import CheckpointError
from linops.linear_operator import LinearOperator
from linops.space import AnySpace
from solvers import controls
from solvers.checkpoint import Checkpointer
from solvers.decorator import ranks_meet
from solvers.elements import (
    admit,
    batch_of,
    first,
    hand_back,
    hand_out,
    products,
    refuse_traced,
    require_finite,
    subtract,
    zeros,
)
from solvers.result import CALLBACK_STOPPED, LIMIT_REACHED, RESIDUAL_REACHED, SolverResult
from solvers.start import spread_start
from solvers.together import agree, describe, same_answer

__all__ = ["Solve"]


class Solve:
    """One solve: its admitted inputs, its history and the state of each member of the batch.

    Parameters
    ----------
    name
        Of the algorithm, for the checkpoint and the progress bar.
    A, y, x0
        Operator, measurements, start (None: zero).
    iterations, rtol, atol, callback, progress
        As the solvers document them.
    checkpoint_directory, resume, checkpoint_every, keep
        As the solvers document them.
    settings
        What else identifies the solve: numbers, arrays, functionals.
    tolerances
        Further tolerances of the solver; like rtol and atol they may change on resuming.
    by_residual
        Whether an exact fit ends the solve where no tolerance is given; with a prior it is not
        the aim.
    true_adjoint
        Whether the algorithm rests on `A.H` being the adjoint; a warning tells where it is not.
    """

    def __init__(
        self,
        name: str,
        A: LinearOperator,
        y: Any,
        *,
        iterations: Any,
        x0: Any = None,
        rtol: Any = 0.0,
        atol: Any = 0.0,
        callback: Any = None,
        progress: Any = False,
        checkpoint_directory: Any = None,
        resume: Any = None,
        checkpoint_every: Any = 1,
        keep: Any = None,
        settings: Mapping[str, Any] | None = None,
        tolerances: Mapping[str, float] | None = None,
        by_residual: bool = True,
        true_adjoint: bool = True,
    ) -> None:
        failure: Exception | None = None
        every, kept = 1, None
        try:
            self.limit = controls.whole("iterations", iterations)
            self._rtol = controls.non_negative("rtol", rtol)
            self._atol = controls.non_negative("atol", atol)
            self._callback = controls.callback_or_none(callback)
            every = controls.positive_count("checkpoint_every", checkpoint_every)
            kept = None if keep is None else controls.positive_count("keep", keep)
        except (TypeError, ValueError) as error:
            if not A.codomain.home.placed:
                raise
            failure = error  # the other ranks are told when all meet
        if true_adjoint and "approximate_adjoint" in A.tags:
            warnings.warn(
                f"{name} needs the adjoint of {A.name}, which declares an approximate one: it may "
                "stall or diverge; sirt takes such pairs, or declare the matched adjoint",
                stacklevel=3,
            )
        self.A = A
        self._given = y
        refuse_traced(name.partition("-")[0], y)
        self.y = admit(y, A.codomain, "y")
        self.batch = batch_of(self.y, A.codomain)
        require_finite(self.y, "y")
        self._agree(
            failure,
            {
                "iterations": iterations,
                "rtol": rtol,
                "atol": atol,
                "x0": x0,
                "checkpoint_directory": checkpoint_directory,
                "resume": resume,
                "checkpoint_every": checkpoint_every,
                "keep": keep,
            },
            settings or {},
        )
        self.started = x0 is not None
        self.x = zeros(A.domain, self.batch, self.y)
        if x0 is not None:
            self.x = spread_start(x0, A.domain, self.batch, self.y)
        self._checkpoints: Checkpointer | None = None
        self.restored: dict[str, Any] | None = None
        self._kept: dict[str, AnySpace] = {}
        self.iteration = 0
        self.history: list[np.ndarray] = []
        self.histories: dict[str, list[float]] = {}
        self._reasons: dict[tuple[int, ...], tuple[str, bool]] = {}
        self.active = np.ones(self.batch, bool)
        self._saved_at = -1
        self._by_residual = by_residual or self._rtol > 0 or self._atol > 0
        self._tolerances = {"rtol": self._rtol, "atol": self._atol, **(tolerances or {})}
        for path, of in ((checkpoint_directory, "checkpoint_directory"), (resume, "resume")):
            hold("Path | None", path, name, of)
        if checkpoint_directory is not None or resume is not None:
            self._checkpoints = Checkpointer(
                name,
                directory=checkpoint_directory,
                every=every,
                keep=kept,
                operator=A,
                measurements=A.codomain.home.gather(self.y),
                start=A.domain.home.gather(self.x) if self.started else None,
                writes=arrays.is_first_process(first(self.y)),
                settings=dict(settings or {}),
            )
            self._together(self._checkpoints.prepare)
            if resume is not None:
                self._restore(resume)
        self._bar = controls.bar(progress, name, self.limit, self.iteration)

    @property
    def going(self) -> bool:
        """Whether another iteration is due."""
        return self.iteration < self.limit and bool(self.active.any())

    @property
    def watched(self) -> bool:
        """Whether a callback sees the iterates."""
        return self._callback is not None

    @property
    def last(self) -> bool:
        """Whether the iteration under way is the last one, and nothing will resume from it."""
        return self.iteration + 1 >= self.limit and self._checkpoints is None

    def ahead(self, longest: int) -> int:
        """How many iterations, of `longest`, come before a callback or a checkpoint is due."""
        count = min(longest, self.limit - self.iteration)
        if self.watched:
            count = min(count, 1)
        if self._checkpoints is not None:
            due = (k for k in range(1, count) if self._checkpoints.due(self.iteration + k))
            count = next(due, count)
        return count

    def keep_state(self, **spaces: AnySpace | None) -> None:
        """Say in which space each element of the state lives, the solution as `x`: files hold it
        whole, of the real shape, and what was restored is put where the solve has it. None:
        numbers of the host."""
        self._kept = {name: space for name, space in spaces.items() if space is not None}
        if self.restored is None:
            return
        if set(self.restored) != set(spaces):
            raise CheckpointError(
                f"{self._restored_from} is damaged: it holds the state "
                f"{', '.join(sorted(self.restored))}, the solve has {', '.join(sorted(spaces))}"
            )
        for name, space in self._kept.items():
            try:
                space.check_shape(self.restored[name], name)
            except (TypeError, ValueError) as error:
                raise CheckpointError(f"{self._restored_from} is damaged: {error}") from error
            self.restored[name] = space.home.adopt(self.restored[name])
        self.x = self.restored["x"]

    def first_residual(self) -> Any:
        """`y - A x` at the start, the given or the restored one; y itself where that is zero."""
        if not self.started and self.restored is None:
            return self.y
        return subtract(self.y, self.A @ self.x)

    def begin_at(self, r: Any) -> np.ndarray:
        """`begin` with the residual r of the start, up to its sign; `|r|^2`."""
        rows = self.A.codomain
        rr, yy = products((rows, r, r), (rows, self.y, self.y))
        self.begin(np.sqrt(rr), np.sqrt(yy))
        return rr

    def begin(self, residual: np.ndarray, norm: np.ndarray | None = None) -> None:
        """Take the residual norms of the start; `norm` is |y|, computed where it is not given."""
        if norm is None:
            norm = np.sqrt(products((self.A.codomain, self.y, self.y))[0])
        self.bound = self._atol + self._rtol * norm
        if self.restored is None:
            self.history = [residual]
        if self._by_residual:
            self.stop(self.history[-1] <= self.bound, RESIDUAL_REACHED, True)

    def stop(self, members: np.ndarray, reason: str, converged: bool) -> None:
        """End these members of the batch."""
        for index in np.argwhere(members & self.active):
            self._reasons[tuple(int(i) for i in index)] = (reason, converged)
        self.active = self.active & ~members

    def record(
        self,
        residual: np.ndarray,
        x: Any,
        state: Callable[[], dict[str, Any]],
        record: Mapping[str, float] | None = None,
        ended: tuple[np.ndarray, str] | None = None,
    ) -> None:
        """Close an iteration: history, tolerances, checkpoint, callback, progress bar.

        Parameters
        ----------
        residual
            `|y - A x|` of each member; members that ended earlier keep their last norm.
        x
            The solution now.
        state
            Makes what a checkpoint holds.
        record
            Values for `histories`.
        ended
            Members that meet another tolerance of the solver, and its reason.
        """
        self.iteration += 1
        self.x = x
        self.history.append(np.where(self.active, residual, self.history[-1]))
        for name, value in (record or {}).items():
            self.histories.setdefault(name, []).append(float(value))
        if self._by_residual:
            self.stop(residual <= self.bound, RESIDUAL_REACHED, True)
        if ended is not None:
            self.stop(*ended, True)
        kept = self._checkpoints
        if kept is not None and (kept.due(self.iteration) or not self.going):
            self._save(state)
        if self._bar is not None:
            self._bar.update()
            if not self.batch:
                self._bar.set_postfix(residual=f"{float(residual):.4g}")
        if self._callback is not None or self._together_watched:
            shown: Any = self.history[-1].ravel().tolist() if self.batch else float(residual)
            if self._call_back(shown, x):
                if self._checkpoints is not None and self._saved_at != self.iteration:
                    self._save(state)
                self.stop(self.active, CALLBACK_STOPPED, False)

    def result(self) -> SolverResult:
        """The outcome."""
        self.stop(self.active, LIMIT_REACHED, False)
        if self._bar is not None:
            self._bar.close()
        rows: list[Any] = [
            row.ravel().tolist() if self.batch else float(row) for row in self.history
        ]
        ended = [self._reasons[index] for index in np.ndindex(*self.batch)]
        reasons, converged = [reason for reason, _ in ended], [met for _, met in ended]
        return SolverResult(
            solution=hand_back(self.x, self.A.domain, self._given, self.A.codomain),
            iterations=self.iteration,
            residual_history=rows,
            converged=converged if self.batch else converged[0],
            reason=reasons if self.batch else reasons[0],
            histories=self.histories,
        )

    def _agree(
        self, failure: Exception | None, asked: Mapping[str, Any], settings: Mapping[str, Any]
    ) -> None:
        """Meet the other ranks of a placed problem: all were asked for the same, or all raise."""
        self._together_watched = False
        like = first(self.y)
        if not arrays.is_distributed(like):
            if failure is not None:
                raise failure
            return
        wanted = {name: describe(value) for name, value in asked.items()}
        for name, value in settings.items():
            if value is None or isinstance(value, (bool, int, float, str)):
                wanted[name] = repr(value)
        ranks_meet()
        agree(like, wanted, failure)
        # One rank may have a callback that the others have not.
        self._together_watched = same_answer(like, self._callback is not None, None)

    def _call_back(self, shown: Any, x: Any) -> bool:
        """Whether the callback of this rank, or of any other, ends the solve."""
        ends, failure = False, None
        try:
            if self._callback is not None:
                ends = controls.is_false(self._callback(self.iteration, shown, hand_out(x)))
        except Exception as error:
            if not self._together_watched:
                raise
            failure = error
        return same_answer(first(self.y), ends, failure) if self._together_watched else ends

    def _save(self, state: Callable[[], dict[str, Any]]) -> None:
        assert self._checkpoints is not None
        self._saved_at = self.iteration
        whole = {
            name: self._kept[name].home.gather(value) if name in self._kept else value
            for name, value in state().items()
        }
        save = functools.partial(
            self._checkpoints.save,
            self.iteration,
            whole,
            history=[row.tolist() for row in self.history],
            histories=self.histories,
            ended=[[list(index), *end] for index, end in self._reasons.items()],
            tolerances=self._tolerances,
        )
        self._together(save)

    def _together(self, writing: Callable[[], None], does: str = "writes") -> None:
        """Write or read, or raise on all ranks where one fails."""
        failure: Exception | None = None
        try:
            writing()
        except Exception as error:
            failure = error
        said = [text for text in arrays.tell_all(first(self.y), failure) if text]
        if failure is not None:
            raise failure
        if said:
            raise CheckpointError(f"the rank that {does} failed: {said[0]}")

    def _restore(self, resume: Any) -> None:
        assert self._checkpoints is not None
        found: list[Any] = []
        self._together(
            lambda: found.append(self._checkpoints.load(resume, like=first(self.y))),  # type: ignore
            "reads",
        )
        (saved,) = found
        agree(first(self.y), {"resume": f"iteration {saved.iteration} of {resume}"}, None)
        if saved.iteration > self.limit:
            raise CheckpointError(
                f"iterations is {self.limit}, but {saved.path} holds iteration "
                f"{saved.iteration}; iterations is the total target"
            )
        self.restored = saved.state
        self.iteration = saved.iteration
        self._saved_at = saved.iteration
        self._restored_from = saved.path
        self.histories = {name: list(values) for name, values in saved.histories.items()}
        try:
            self.history = [
                np.asarray(row, np.float64).reshape(self.batch) for row in saved.history
            ]
            ended = [(_only(self.batch, i), why, bool(met)) for i, why, met in saved.ended]
        except (TypeError, ValueError, IndexError) as error:
            raise CheckpointError(
                f"{saved.path} is damaged: its history is none of this solve ({error})"
            ) from error
        if saved.tolerances == self._tolerances:
            for members, reason, converged in ended:
                self.stop(members, reason, converged)


def _only(batch: tuple[int, ...], index: list[int]) -> np.ndarray:
    members = np.zeros(batch, bool)
    members[tuple(index)] = True
    return members
