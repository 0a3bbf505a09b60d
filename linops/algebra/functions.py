"""Operators from a pair of functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any

from linops import guard
from linops.algebra.blockwise import block_of_any_extent
from linops.arguments import checked
from linops.linear_operator import LinearOperator
from linops.operator import Operator
from linops.precision import Precision
from linops.rule import Rule
from linops.space import AnySpace, ProductSpace, Space
from linops.transforms.closures import fill_closure, find_closed_over

__all__ = ["FunctionOperator", "from_functions"]

_TAGS = {"approximate_adjoint", "diagonal", "nonnegative", "psd", "real_linear", "self_adjoint"}
_TAGS |= {"unitary"}


@checked
def from_functions(
    apply: Callable[[Any], Any],
    adjoint: Callable[[Any], Any] | None = None,
    *,
    domain: AnySpace,
    codomain: AnySpace | None = None,
    rule: str | Rule | None = None,
    precision: str | Precision | None = None,
    name: str | None = None,
    tags: Iterable[str] = (),
    batched: bool = False,
    blockwise: bool = False,
    adjoint_kind: str = "exact",
) -> LinearOperator:
    """A linear operator from the function that applies it and the one that applies its adjoint.

    Parameters
    ----------
    apply, adjoint
        From an element of the domain to one of the codomain, and back.
    domain, codomain
        The codomain is the domain where it is not given.
    rule, precision, name, tags
        As for `LinearOperator`.
    batched
        Whether the functions take leading batch axes; else batches are looped over.
    blockwise
        Whether the functions serve any extent of aligned axes. Blocks then call them on their
        own planes and the halo beside them, cut off where the array ends, and keep of the
        result what is not halo; `adjoint` must be the adjoint of `apply` for each extent.
    adjoint_kind
        `"exact"`, or `"approximate"` for an unmatched pair: a tag then says so.

    Raises
    ------
    TypeError
        Without an adjoint: it is not guessed; for a domain that is no space.
    ValueError
        For tags that nothing reads.
    """
    if adjoint is None:
        raise TypeError(
            "from_functions takes the adjoint as its second argument: "
            "from_functions(apply, adjoint, domain=...). A self-adjoint operator passes apply twice"
        )
    if adjoint_kind not in ("exact", "approximate"):
        raise ValueError(f"adjoint_kind is 'exact' or 'approximate', got {adjoint_kind!r}")
    spaces: dict[str, Any] = {"domain": domain}
    if codomain is not None:
        spaces["codomain"] = codomain
    for which, space in spaces.items():
        if not isinstance(space, (Space, ProductSpace)):
            raise TypeError(f"{which} is {space!r}; it is a Space, such as linops.Space((4, 5))")
    known = {tags} if isinstance(tags, str) else set(tags)
    if not known <= _TAGS:
        raise ValueError(
            f"tags has {sorted(map(str, known - _TAGS))}; known tags are {', '.join(sorted(_TAGS))}"
        )
    if adjoint_kind == "approximate":
        known.add("approximate_adjoint")
    return FunctionOperator(
        apply,
        adjoint,
        domain,
        domain if codomain is None else codomain,
        rule,
        precision,
        name or getattr(apply, "__name__", None),
        known,
        batched,
        blockwise,
    )


class FunctionOperator(LinearOperator):
    """What `from_functions` gives."""

    def __init__(
        self,
        apply: Callable[[Any], Any],
        adjoint: Callable[[Any], Any],
        domain: AnySpace,
        codomain: AnySpace,
        rule: str | Rule | None,
        precision: str | Precision | None,
        name: str | None,
        tags: Iterable[str],
        batched: bool,
        blockwise: bool,
    ) -> None:
        super().__init__(domain, codomain, rule, precision=precision, name=name, tags=tags)
        self.apply, self.adjoint = apply, adjoint
        self.batched = batched
        self._blockwise = blockwise
        # Traced values that the functions close over are arrays of the operator.
        forward, backward = find_closed_over(apply), find_closed_over(adjoint)
        self._closed, self._closed_by_apply = forward + backward, len(forward)

    @cached_property
    def _forward(self) -> Callable[[Any], Any]:
        # The user's function itself: one Python call less than through `_apply`.
        return guard.entrance(self, self._apply if self._closed else self.apply, adjoint=False)

    @cached_property
    def _backward(self) -> Callable[[Any], Any]:
        hook = self._apply_adjoint if self._closed else self.adjoint
        return guard.entrance(self, hook, adjoint=True)

    def _apply(self, x: Any) -> Any:
        return self._filled[0](x)

    def _apply_adjoint(self, y: Any) -> Any:
        return self._filled[1](y)

    @property
    def _filled(self) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
        """Both functions, with this operator's own arrays in the place of traced values."""
        if not self._closed:
            return self.apply, self.adjoint
        k = self._closed_by_apply
        return (
            fill_closure(self.apply, iter(self._closed[:k])),
            fill_closure(self.adjoint, iter(self._closed[k:])),
        )

    def _block(self, axis: str, start: int, stop: int, padded: bool) -> Operator | None:
        if not self._blockwise:
            return None
        return block_of_any_extent(self, self._between, axis, start, stop, padded)

    def _between(self, domain: AnySpace, codomain: AnySpace) -> LinearOperator:
        return FunctionOperator(
            *self._filled,
            domain,
            codomain,
            self.rule,
            self._precision,
            self.name,
            self._declared_tags,
            self.batched,
            True,
        )

    def __reduce_ex__(self, protocol: Any) -> Any:
        for function in (self.apply, self.adjoint):
            if "<lambda>" in getattr(function, "__qualname__", "") or "<locals>" in getattr(
                function, "__qualname__", ""
            ):
                import pickle

                raise pickle.PicklingError(
                    f"{self.name} holds the function {function.__qualname__}, which pickle cannot "
                    "find again; move it to module level"
                )
        return super().__reduce_ex__(protocol)
