"""Dual numbers on NumPy arrays: a value with its derivatives in several named quantities.

Operators and the common functions of NumPy take them. Where a maximum, minimum or absolute value
ties, the derivative is that of the first argument, and of `+x`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any

import numpy as np

__all__ = ["Dual"]


class Dual:
    """A value, and its derivative `parts[key]` in the quantity of each key."""

    __array_priority__ = 1e4

    def __init__(self, value: Any, parts: Mapping[Hashable, Any]) -> None:
        self.value, self.parts = value, dict(parts)

    def _chained(self, value: Any, slope: Any) -> Dual:
        return Dual(value, {key: slope * part for key, part in self.parts.items()})

    def __add__(self, other: Any) -> Dual:
        return _joined(_value(self) + _value(other), self, 1.0, other, 1.0)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Dual:
        return _joined(_value(self) - _value(other), self, 1.0, other, -1.0)

    def __rsub__(self, other: Any) -> Dual:
        return _joined(_value(other) - _value(self), self, -1.0, other, 1.0)

    def __mul__(self, other: Any) -> Dual:
        a, b = _value(self), _value(other)
        return _joined(a * b, self, b, other, a)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Dual:
        a, b = _value(self), _value(other)
        return _joined(a / b, self, 1.0 / b, other, -a / (b * b))

    def __rtruediv__(self, other: Any) -> Dual:
        return self._chained(other / self.value, -other / (self.value * self.value))

    def __pow__(self, power: Any) -> Dual:
        if isinstance(power, Dual):
            return NotImplemented
        return self._chained(self.value**power, power * self.value ** (power - 1))

    def __neg__(self) -> Dual:
        return self._chained(-self.value, -1.0)

    def __pos__(self) -> Dual:
        return self

    def __abs__(self) -> Dual:
        return self._chained(abs(self.value), np.where(self.value >= 0, 1.0, -1.0))

    def __lt__(self, other: Any) -> Any:
        return self.value < _value(other)

    def __le__(self, other: Any) -> Any:
        return self.value <= _value(other)

    def __gt__(self, other: Any) -> Any:
        return self.value > _value(other)

    def __ge__(self, other: Any) -> Any:
        return self.value >= _value(other)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        if method != "__call__" or options:
            return NotImplemented
        if ufunc in _ARITHMETIC:
            return _ARITHMETIC[ufunc](*inputs)
        if ufunc in _SLOPES:
            a = inputs[0].value
            value = ufunc(a)
            return inputs[0]._chained(value, _SLOPES[ufunc](a, value))
        if ufunc in _COMPARED:
            return ufunc(*(_value(one) for one in inputs))
        raise TypeError(
            f"the derivative of numpy.{ufunc.__name__} is not known here; write the function with "
            "arithmetic, maximum, minimum, where, sqrt, exp, log or trigonometry, or use JAX arrays"
        )

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if function is np.where and len(args) == 3:
            return where(_value(args[0]), args[1], args[2])
        return NotImplemented


def where(condition: Any, a: Any, b: Any) -> Any:
    """`a` where the condition holds, else `b`, derivatives too."""
    chosen = np.where(condition, _value(a), _value(b))
    return _joined(chosen, a, np.where(condition, 1.0, 0.0), b, np.where(condition, 0.0, 1.0))


def _value(x: Any) -> Any:
    return x.value if isinstance(x, Dual) else x


def _joined(value: Any, a: Any, da: Any, b: Any, db: Any) -> Dual:
    parts: dict[Hashable, Any] = {}
    for one, slope in ((a, da), (b, db)):
        if isinstance(one, Dual):
            for key, part in one.parts.items():
                term = slope * part
                parts[key] = parts[key] + term if key in parts else term
    return Dual(value, parts)


def _maximum(a: Any, b: Any) -> Any:
    return where(_value(a) >= _value(b), a, b)


def _minimum(a: Any, b: Any) -> Any:
    return where(_value(a) <= _value(b), a, b)


def _swap(name: str) -> Callable[[Any, Any], Any]:
    def run(a: Any, b: Any) -> Any:
        if isinstance(a, Dual):
            return getattr(a, f"__{name}__")(b)
        return getattr(b, f"__r{name}__")(a)

    return run


_ARITHMETIC: dict[Any, Callable[..., Any]] = {
    np.add: _swap("add"),
    np.subtract: _swap("sub"),
    np.multiply: _swap("mul"),
    np.true_divide: _swap("truediv"),
    np.power: lambda a, b: a**b,
    np.negative: lambda a: -a,
    np.absolute: abs,
    np.square: lambda a: a * a,
    np.maximum: _maximum,
    np.minimum: _minimum,
}
_SLOPES: dict[Any, Callable[[Any, Any], Any]] = {
    np.exp: lambda a, value: value,
    np.log: lambda a, value: 1.0 / a,
    np.sqrt: lambda a, value: 0.5 / value,
    np.sin: lambda a, value: np.cos(a),
    np.cos: lambda a, value: -np.sin(a),
    np.tanh: lambda a, value: 1.0 - value * value,
    np.arctan: lambda a, value: 1.0 / (1.0 + a * a),
    np.sign: lambda a, value: 0.0 * a,
}
_COMPARED = frozenset(
    {np.less, np.less_equal, np.greater, np.greater_equal, np.equal, np.not_equal}
)
