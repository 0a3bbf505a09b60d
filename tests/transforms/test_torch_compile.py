"""Operators within `torch.compile`: one node of the graph, or a clean break of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import linops as lo

torch = pytest.importorskip("torch")

# torch's tracer looks at .grad of what it resumes with.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    """Graphs of earlier tests neither serve nor count."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled(function: Callable[..., Any], fullgraph: bool = False) -> Any:
    # This back end traces derivatives as the default one does, and needs no C++ compiler.
    return torch.compile(function, backend="aot_eager", fullgraph=fullgraph)


def near(found: Any, wanted: Any) -> None:
    np.testing.assert_allclose(found.detach(), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["pair", "mixed", "complex", "real-linear"])
def test_a_call_is_one_node_of_the_graph(named: Any, name: str) -> None:
    case = named(name)
    A = case.operator

    @torch.no_grad()
    def nodes(x: Any) -> list[str]:
        seen: list[str] = []

        def record(graph: Any, _: Any) -> Any:
            seen.extend(str(node.target) for node in graph.graph.nodes)
            return graph.forward

        torch.compile(lambda x: A(2 * x), backend=record, fullgraph=True)(x)
        return [name for name in seen if "linops" in name]

    x, y = torch.from_numpy(case.x()), torch.from_numpy(case.y())
    assert nodes(x) == ["linops.apply"]
    x.requires_grad_()
    out = compiled(lambda x: A(2 * x), fullgraph=True)(x)
    near(out, 2 * case.forward(case.x()))
    (gradient,) = torch.autograd.grad(out, x, y)
    near(gradient, 2 * case.adjoint(case.y()))


def test_batches_product_spaces_and_adjoints() -> None:
    m = np.arange(6, dtype="float32").reshape(2, 3)
    S = lo.vstack([lo.Matrix(m), lo.Matrix(m + 1)])
    back = S.H
    x = torch.ones(4, 3, requires_grad=True)

    def normal(x: Any) -> Any:
        first, second = S(x)
        return back((first, 2 * second))

    out = compiled(normal, fullgraph=True)(x)
    matrix = m.T @ m + 2 * (m + 1).T @ (m + 1)
    near(out, np.ones((4, 3)) @ matrix.T)
    out.sum().backward()
    near(x.grad, np.ones((4, 3)) @ matrix)


class Square(lo.Operator):
    """x -> x^2, with or without a declared derivative."""

    def __init__(self, declared: bool) -> None:
        super().__init__(lo.Space(4), lo.Space(4))
        self.declared = declared

    def _apply(self, x: Any) -> Any:
        # NumPy's own code knows no derivative: the declared one is what runs.
        return np.square(np.asarray(x)) if self.declared else x * x

    def _jacobian(self, x: Any) -> lo.LinearOperator:
        return lo.Diagonal(2 * x) if self.declared else super()._jacobian(x)


def gradient_of(function: Callable[..., Any], *x: Any) -> list[Any]:
    """Value and gradients of the compiled function, no graph breaks allowed."""
    leaves = [part.clone().requires_grad_() for part in x]
    out = compiled(function, fullgraph=True)(*leaves)
    return [out, *torch.autograd.grad(out.sum(), leaves)]


def test_functionals_and_their_gradients_are_nodes() -> None:
    s, A = lo.Space((2, 3)), lo.Diagonal(np.arange(6, dtype="float32").reshape(2, 3))
    loss, magnitude, tv = lo.LeastSquares(s) @ A, lo.L1(s), lo.TotalVariation(s)
    x = np.array([[3, 1, -2], [0.5, -1, 4]])
    d = np.arange(6).reshape(2, 3)
    t = torch.tensor(x, dtype=torch.float32)

    def objective(x: Any) -> Any:
        return loss(x) + 0.5 * magnitude(2 * x)

    value, gradient = gradient_of(objective, t)
    assert value.dtype == torch.float64 and not value.ndim
    near(value, 0.5 * ((d * x) ** 2).sum() + np.abs(x).sum())
    near(gradient, d**2 * x + np.sign(x))
    # With batch axes there is a value, and a gradient, for each member.
    value, gradient = gradient_of(objective, torch.stack([t, 2 * t]))
    near(value, [0.5 * f**2 * ((d * x) ** 2).sum() + f * np.abs(x).sum() for f in (1, 2)])
    near(gradient, np.stack([f * d**2 * x + np.sign(x) for f in (1, 2)]))
    # A step of descent, and its derivative: the Hessian's action.
    value, gradient = gradient_of(lambda x: x - 0.1 * loss.gradient(x), t)
    near(value, x - 0.1 * d**2 * x)
    near(gradient, 1 - 0.1 * d**2)
    # Differences along both axes, at an image that is flat: no division by zero.
    value, gradient = gradient_of(lambda x: tv(x) + tv.gradient(x).sum(), torch.zeros(2, 3))
    near(value, tv(np.zeros((2, 3), "float32")))
    assert torch.isfinite(gradient).all()
    pair = lo.separable([lo.Quadratic(s), lo.LeastSquares(s)])
    value, *gradients = gradient_of(lambda x, y: pair((x, 3 * y)), t, t)
    near(value, 0.5 * 10 * (x**2).sum())
    near(gradients[0], x)
    near(gradients[1], 9 * x)


@pytest.mark.parametrize("declared", [True, False])
def test_maps_that_are_not_linear_are_nodes(declared: bool) -> None:
    square, m = Square(declared), np.arange(12, dtype="float32").reshape(3, 4)
    model = lo.Matrix(m) @ square
    x = np.array([[1, 2, -1, 3], [0, -2, 1, 1]])
    value, gradient = gradient_of(lambda x: model(torch.neg(x)), torch.tensor(x).float())
    near(value, x**2 @ m.T)
    near(gradient, 2 * x * m.sum(0))
    value, gradient = gradient_of(lambda x: square(x), torch.ones(0, 4))
    assert value.shape == gradient.shape == (0, 4)


def test_dtypes_are_those_of_eager_mode() -> None:
    A = lo.Diagonal(np.array([1, 2, 3], "float32"))
    call = compiled(lambda x: A(x), fullgraph=True)
    z = torch.tensor([1 + 1j, 2, -1j])
    near(call(z), z * torch.tensor([1, 2, 3]))
    assert call(torch.arange(3)).dtype == torch.float32
    x = torch.ones(3, dtype=torch.float64, requires_grad=True)
    with pytest.warns(RuntimeWarning, match="float64 input is cast"):
        out = call(x)
    assert out.dtype == torch.float32
    out.sum().backward()
    assert x.grad.dtype == torch.float64
    near(x.grad, [1, 2, 3])


def test_at_breaks_the_graph_and_keeps_derivatives(named: Any) -> None:
    case = named("mixed")
    A = case.operator
    x, y = torch.from_numpy(case.x()).requires_grad_(), torch.from_numpy(case.y())

    def both(x: Any, y: Any) -> Any:
        return (A @ torch.sin(x) * y).sum() + (y.reshape(3, 5) @ A * x).sum()

    found = compiled(both)(x, y)
    wanted = both(x, y)
    near(found, wanted.detach())
    assert torch.equal(torch.autograd.grad(found, x)[0], torch.autograd.grad(wanted, x)[0])


def test_operators_built_inside() -> None:
    x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    w = torch.tensor([3.0, 1.0, 2.0], requires_grad=True)

    def from_arrays(x: Any, w: Any) -> Any:
        A = 2 * lo.Diagonal(np.arange(3, dtype="float32")) @ lo.Identity(lo.Space(3))
        return (A.H @ A @ (w * x)).sum()

    def from_tensors(x: Any, w: Any) -> Any:
        A = lo.Diagonal(w) + lo.Diagonal(w)
        return (A(torch.sin(x)) - A @ x).sum()

    for function in (from_arrays, from_tensors):
        call = compiled(function)
        for _ in range(2):
            found = torch.autograd.grad(call(x, w), (x, w))
            wanted = torch.autograd.grad(function(x, w), (x, w))
            for a, b in zip(found, wanted, strict=True):
                near(a, b)


def test_an_array_of_the_operator_that_requires_a_gradient_gets_it() -> None:
    w = torch.tensor([3.0, 1.0, 2.0], requires_grad=True)
    A = 2 * lo.Diagonal(w)
    x = torch.tensor([1.0, 2.0, 3.0])
    compiled(lambda x: A(x).sum())(x).backward()
    near(w.grad, [2, 4, 6])


def test_a_wrong_shape_is_explained() -> None:
    A = lo.Gradient(lo.Space((3, 4), axes=("y", "x")))
    with pytest.raises(Exception, match=r"Gradient expects \(y=3, x=4\), got \(4, 3\)"):
        compiled(lambda x: A(x), fullgraph=True)(torch.ones(4, 3))
