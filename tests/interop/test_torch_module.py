"""Operators as layers: gradients, parameters, state dicts, copies."""

from __future__ import annotations

import copy
import io

import numpy as np
import pytest

import linops as lo
from linops.interop import to_torch_module

torch = pytest.importorskip("torch")


def test_forward_and_adjoint_with_batch_and_channel_axes() -> None:
    A = lo.Gradient(lo.Space((4, 5)))
    layer = to_torch_module(A)
    x = torch.randn(2, 3, 4, 5)
    assert layer(x).shape == (2, 3, 2, 4, 5)
    assert np.allclose(layer(x).numpy(), A @ x.numpy())
    y = torch.randn(2, 3, 2, 4, 5)
    assert np.allclose(layer.adjoint(y).numpy(), A.H @ y.numpy(), atol=1e-6)
    assert "Gradient" in repr(layer)


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        lambda: lo.Gradient(lo.Space((3, 4), "float64")),
        lambda: lo.FFT(lo.Space((3, 4), "float64")),
        lambda: lo.Convolve(lo.Space((3, 4), "complex128"), np.array([[1.0, 2j]])),
        lambda: lo.Interpolate(lo.Space((3, 4), "float64"), np.array([[0.5, 1.2], [1.5, 3.0]])),
    ],
)
def test_first_and_second_derivatives(make) -> None:
    A = make()
    layer = to_torch_module(A)
    x = torch.as_tensor(A.domain.random(0)).requires_grad_()
    assert torch.autograd.gradcheck(layer, x)
    assert torch.autograd.gradgradcheck(layer, x)


def test_a_network_around_it_trains_and_constants_stay_out_of_the_state() -> None:
    A = lo.SumOver(lo.Space((4, 5)), 1)
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(5, 5), to_torch_module(A))
    assert list(net.state_dict()) == ["0.weight", "0.bias"]
    x, target = torch.randn(8, 4, 5), torch.randn(8, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = ((net(x) - target) ** 2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]


def test_parameters_of_the_operator_are_trained_saved_and_loaded() -> None:
    kernel = torch.nn.Parameter(torch.tensor([0.0, 1.0, 0.0]))
    layer = to_torch_module(2 * lo.Convolve(lo.Space(16), kernel))
    assert [p is kernel for p in layer.parameters()] == [True]
    wanted = torch.tensor([0.5, -1.0, 0.25])
    torch.manual_seed(0)
    x = torch.randn(32, 16)
    y = to_torch_module(2 * lo.Convolve(lo.Space(16), wanted))(x)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.05)
    for _ in range(300):
        optimizer.zero_grad()
        ((layer(x) - y) ** 2).mean().backward()
        optimizer.step()
    assert torch.allclose(kernel.detach(), wanted, atol=1e-3)
    fresh = to_torch_module(2 * lo.Convolve(lo.Space(16), torch.nn.Parameter(torch.zeros(3))))
    fresh.load_state_dict(layer.state_dict())
    assert torch.allclose(fresh(x), layer(x))


def test_copies_and_files() -> None:
    kernel = torch.nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))
    layer = to_torch_module(lo.Convolve(lo.Space(8), kernel))
    x = torch.randn(8)
    twin = copy.deepcopy(layer)
    assert torch.equal(twin(x), layer(x))
    with torch.no_grad():
        kernel.mul_(2)
    assert torch.allclose(layer(x), 2 * twin(x))
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=False)(x), layer(x))


def test_moves_follow_the_input() -> None:
    layer = to_torch_module(lo.Diagonal(np.arange(4, dtype="float32"))).to("cpu")
    meta = torch.zeros(4, device="meta")
    assert to_torch_module(lo.Gradient(lo.Space(4)))(meta).device.type == "meta"
    assert layer(torch.ones(4)).device.type == "cpu"


def test_nonlinear_operators_have_no_adjoint() -> None:
    layer = to_torch_module(lo.Exp(lo.Space(3)))
    assert torch.allclose(layer(torch.zeros(3)), torch.ones(3))
    with pytest.raises(TypeError, match="jacobian"):
        layer.adjoint(torch.zeros(3))
