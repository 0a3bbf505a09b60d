"""Where the elements of a space live: plain arrays in their caller's hands (`LOCAL`), or elsewhere.

A space asks its `home` for whatever depends on that: making, checking, moving and reducing its
elements, and lowering operators to them. The methods of `Home` are those of plain arrays, which
have nothing to do; what arrays on the devices of a plan need is written beside the plans.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any

from linops import arrays
from linops.arrays import Array
from linops.errors import DTypeError, ShapeError
from linops.reductions import dot

if TYPE_CHECKING:
    from linops.operator import Operator
    from linops.space import Space

__all__ = ["LOCAL", "Home", "Local", "MemberHomes"]


class Home:
    """Where elements live; of a product space they are tuples."""

    placement: Any = None
    """The devices and what each of them has of an element; None for plain arrays."""

    apart: bool = False
    """Whether elements are arrays on devices, which plain ones have to be put on."""

    reduction: Hashable = None
    """Spaces of homes with equal ones reduce together: `dots` of one of them takes them all."""

    @property
    def placed(self) -> bool:
        """Whether elements live where a plan says."""
        return self.placement is not None

    def put(self, x: Any) -> Any:
        """`x` where elements live, in memory that its caller has no part in."""
        return x

    def adopt(self, x: Any) -> Any:
        """`put` of an element that its maker gives away: the memory may be shared."""
        return x

    def gather(self, x: Any) -> Any:
        """The plain arrays of an element."""
        return x

    def holds(self, x: Array) -> bool:
        """Whether an array lives here, apart from plain ones."""
        return False

    def clear_padding(self, x: Any) -> Any:
        """`x` with zeros where an element is longer than its space."""
        return x

    def pin(self, x: Any) -> Any:
        """`x`, within a compiled loop held to where it lives."""
        return x

    def full(self, shape: tuple[int, ...], dtype: Any, value: int, like: Any) -> Array:
        """Zeros or ones of a shape, in the namespace and on the device of `like`."""
        make = arrays.ones if value else arrays.zeros
        return make(shape, dtype, arrays.exemplar(like))

    def check(self, x: Any, space: Space, owner: str) -> None:
        """Raise unless `x` is an array whose trailing axes are those of the space."""
        if not arrays.is_array(x):
            raise DTypeError(
                f"{owner} takes an array of a namespace such as NumPy, JAX or torch, got "
                f"{type(x).__module__}.{type(x).__name__}; convert it, e.g. with numpy.asarray"
            )
        if arrays.is_masked(x):
            raise arrays.masked_error(owner, "array")
        n = len(space.shape)
        shape = tuple(x.shape)
        if len(shape) >= n and shape[len(shape) - n :] == space.shape:
            return
        raise ShapeError(
            f"{owner} expects {space.describe_shape()}, got {shape}{_hint(space, shape)}"
        )

    def refuse(self, error: Exception) -> None:
        """Tell the processes that share an element that this one raises."""

    def dots(self, terms: Sequence[tuple[Space, Array, Array]], host: bool) -> list[Any]:
        """Inner products `(space, a, b)`: numbers, or where not `host` 0-d arrays."""
        return [dot(a, b, space.ndim, host) for space, a, b in terms]

    def lower(self, operator: Operator, space: Any) -> Operator:
        """`operator` on elements of `space`, which live here."""
        return operator

    def lower_between(self, operator: Operator, domain: Any, codomain: Any) -> Operator:
        """`operator` from and to elements as they live in two spaces; None where that is free."""
        return operator

    def compile(
        self, function: Callable[..., Any], donated: tuple[str, ...] = ()
    ) -> Callable[..., Any] | None:
        """`function` as one program, where loops over elements are to be one; None elsewhere.

        It is a function of its module, so that calls share programs, of pytrees. What it is given
        for the arguments `donated` is its to write into.
        """
        return None

    def agrees(self, other: Home) -> bool:
        """Whether elements lie in the same way here and there, or one of both is anywhere."""
        return True


class Local(Home):
    """Plain arrays."""

    def __reduce__(self) -> str:
        return "LOCAL"


LOCAL = Local()


class MemberHomes(Home):
    """The homes of the members of a product space."""

    def __init__(self, homes: Sequence[Home]) -> None:
        self.homes = tuple(homes)

    @property
    def placed(self) -> bool:
        """Whether all members live where a plan says."""
        return all(home.placed for home in self.homes)

    def put(self, x: Any) -> Any:
        """Every member put where it lives."""
        return tuple(home.put(part) for home, part in self._pairs(x))

    def adopt(self, x: Any) -> Any:
        """Every member put where it lives, given away by its maker."""
        return tuple(home.adopt(part) for home, part in self._pairs(x))

    def gather(self, x: Any) -> Any:
        """Every member as a plain array."""
        return tuple(home.gather(part) for home, part in self._pairs(x))

    def clear_padding(self, x: Any) -> Any:
        """Every member with zeros in its padding."""
        return tuple(home.clear_padding(part) for home, part in self._pairs(x))

    def pin(self, x: Any) -> Any:
        """Every member held to where it lives."""
        return tuple(home.pin(part) for home, part in self._pairs(x))

    def refuse(self, error: Exception) -> None:
        """As the first member, which lives on the same devices as all."""
        self.homes[0].refuse(error)

    def lower(self, operator: Operator, space: Any) -> Operator:
        """`operator` on elements that are placed, all members of them."""
        return self.homes[0].lower(operator, space) if self.placed else operator

    def lower_between(self, operator: Operator, domain: Any, codomain: Any) -> Operator:
        """As the first member, if all are placed."""
        first = self.homes[0]
        return first.lower_between(operator, domain, codomain) if self.placed else operator

    def compile(
        self, function: Callable[..., Any], donated: tuple[str, ...] = ()
    ) -> Callable[..., Any] | None:
        """As the first member."""
        return self.homes[0].compile(function, donated)

    def _pairs(self, x: Any) -> zip[tuple[Home, Any]]:
        return zip(self.homes, x, strict=True)


def _hint(space: Space, shape: tuple[int, ...]) -> str:
    n = space.ndim
    if n != 1 and shape and shape[-1] == space.size and space.size > 1:
        return (
            "; this looks like a flat vector: reshape it with A.domain.unravel(v), "
            "or call A.matvec(v)"
        )
    tail = shape[len(shape) - n :] if len(shape) >= n else shape
    if len(tail) == n and sorted(tail) == sorted(space.shape):
        moved = [i for i in range(n) if tail[i] != space.shape[i]]
        names = [space.axes[i] if space.axes else str(i) for i in moved]
        if len(moved) == 2:
            return f": axes {names[0]} and {names[1]} look swapped"
        return f": axes {', '.join(names)} look permuted"
    return ""
