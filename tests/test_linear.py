"""The packed weight against `F.linear`, which is its definition."""

import pytest
import torch
import torch.nn.functional as F

from minivllm import linear
from minivllm.linear import Linear

# out, in: SmolLM2-135M's five matrices (the head cut short), then sizes that fill no register.
SHAPES = [(960, 576), (576, 576), (3072, 576), (576, 1536), (4096, 576), (1, 1), (7, 3), (50, 33)]
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}


def make(out: int, size: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return (torch.randn(out, size) / size**0.5).to(dtype), torch.randn(out).to(dtype)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", SHAPES)
def test_equals_f_linear(shape: tuple[int, int], dtype: torch.dtype) -> None:
    weight, bias = make(*shape, dtype)
    layers = [(Linear(weight), None), (Linear(weight, bias), bias)]
    for rows in (1, 2, 3, 16, 65):
        x = torch.randn(rows, shape[1]).to(dtype)
        for layer, b in layers:
            y = layer(x)
            assert y.shape == (rows, shape[0]) and y.dtype == dtype
            tolerance = TOLERANCE[dtype]
            torch.testing.assert_close(y, F.linear(x, weight, b), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("shape", SHAPES[:4])
def test_a_row_does_not_depend_on_the_others(shape: tuple[int, int]) -> None:
    weight, _ = make(*shape, torch.float32)
    layer, x = Linear(weight), torch.randn(64, shape[1])
    together = layer(x)
    for rows in (1, 2, 5, 16):
        torch.testing.assert_close(layer(x[:rows]), together[:rows], rtol=0, atol=1e-5)


def test_only_one_layout_is_kept() -> None:
    weight, _ = make(8, 6, torch.float32)
    layer = Linear(weight)
    assert layer.is_packed == (layer._weight is None)


def test_a_packed_product_that_is_wrong_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, bias = make(8, 6, torch.float32)

    def wrong(x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return F.linear(x, weight, bias) * 1.001

    monkeypatch.setattr(linear, "packed_linear", wrong)
    layer, x = Linear(weight, bias), torch.randn(3, 6)
    assert not layer.is_packed
    assert torch.equal(layer(x), F.linear(x, weight, bias))


@pytest.mark.parametrize("error", [AttributeError, RuntimeError, NotImplementedError])
def test_operators_that_are_missing_are_not_used(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def missing(x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        raise error("no such operator")

    weight, bias = make(8, 6, torch.float32)
    monkeypatch.setattr(linear, "packed_linear", missing)
    layer, x = Linear(weight, bias), torch.randn(3, 6)
    assert not layer.is_packed
    assert torch.equal(layer(x), F.linear(x, weight, bias))


def test_other_dtypes_take_the_definition() -> None:
    assert not Linear(make(8, 6, torch.float64)[0]).is_packed
