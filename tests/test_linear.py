"""Each layout of a weight against `F.linear`, which is the definition of them all."""

import pytest
import torch
import torch.nn.functional as F

from minivllm import cpp_build, linear
from minivllm.linear import OneDnn, Panels, Plain, make_linear

needs_cpp = pytest.mark.skipif(cpp_build.why_not() is not None, reason="no C++ kernels here")
KERNELS = ["torch", pytest.param("cpp", marks=needs_cpp)]

# out, in: SmolLM2-135M's five matrices (the head cut short), then sizes that fill no register.
SHAPES = [(960, 576), (576, 576), (3072, 576), (576, 1536), (4096, 576), (1, 1), (7, 3), (50, 33)]
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}


def make(out: int, size: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return (torch.randn(out, size) / size**0.5).to(dtype), torch.randn(out).to(dtype)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", SHAPES)
def test_equals_f_linear(shape: tuple[int, int], dtype: torch.dtype, kernels: str) -> None:
    """Rows up to 12 are one tile of the C++ kernel, up to 96 one chunk."""
    weight, bias = make(*shape, dtype)
    layers = [
        (make_linear(weight, None, kernels), None),
        (make_linear(weight, bias, kernels), bias),
    ]
    for rows in (1, 2, 3, 12, 13, 16, 65, 97, 200):
        x = torch.randn(rows, shape[1]).to(dtype)
        for layer, b in layers:
            y = layer(x)
            assert y.shape == (rows, shape[0]) and y.dtype == dtype
            tolerance = TOLERANCE[dtype]
            torch.testing.assert_close(y, F.linear(x, weight, b), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("shape", SHAPES[:4])
def test_a_row_does_not_depend_on_the_others(shape: tuple[int, int], kernels: str) -> None:
    """To the last bit where the C++ kernel adds up, which holds by its construction."""
    weight, _ = make(*shape, torch.float32)
    layer, x = make_linear(weight, None, kernels), torch.randn(200, shape[1])
    together = layer(x)
    for rows in (1, 2, 5, 13, 16, 97):
        tolerance = 0 if kernels == "cpp" else 1e-5
        torch.testing.assert_close(layer(x[:rows]), together[:rows], rtol=0, atol=tolerance)


@pytest.mark.skipif(
    cpp_build.why_not() is not None or not cpp_build.has_amx(), reason="no matrix unit here"
)
@pytest.mark.parametrize("shape", [*SHAPES[:4], (96, 32), (33, 64)])
def test_a_row_does_not_depend_on_the_others_in_bfloat16(shape: tuple[int, int]) -> None:
    """Tiles of 16 rows, two at a time, 256 in a chunk; what fills up the last tile is not seen."""
    weight, bias = make(*shape, torch.bfloat16)
    layer, x = make_linear(weight, bias, "cpp"), torch.randn(300, shape[1]).bfloat16()
    assert isinstance(layer, Panels)
    together = layer(x)
    torch.testing.assert_close(together, F.linear(x, weight, bias), rtol=2e-2, atol=2e-2)
    for rows in (1, 2, 15, 16, 17, 31, 32, 33, 48, 256, 257, 271, 288):
        assert torch.equal(layer(x[:rows]), together[:rows])
        assert torch.equal(layer(x[-rows:]), together[-rows:])


@needs_cpp
def test_panels_take_a_strided_input_and_refuse_another_size() -> None:
    """A C function believes the sizes it is told: what does not fit must not get there."""
    weight, bias = make(40, 24, torch.float32)
    layer, x = make_linear(weight, bias, "cpp"), torch.randn(5, 48)
    assert isinstance(layer, Panels)
    torch.testing.assert_close(layer(x[:, ::2]), F.linear(x[:, ::2], weight, bias))
    assert layer(x[:0, ::2]).shape == (0, 40)
    for wrong in (x, x[0, :24], x[:, ::2].double()):
        with pytest.raises(ValueError, match="float32 weight of 24 inputs got x of"):
            layer(wrong)


def test_a_packed_product_that_is_wrong_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, bias = make(8, 6, torch.float32)

    def wrong(x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return F.linear(x, weight, bias) * 1.001

    monkeypatch.setattr(linear, "packed_linear", wrong)
    layer, x = make_linear(weight, bias), torch.randn(3, 6)
    assert isinstance(layer, Plain)
    assert torch.equal(layer(x), F.linear(x, weight, bias))


@pytest.mark.parametrize("error", [AttributeError, RuntimeError, NotImplementedError])
def test_operators_that_are_missing_are_not_used(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def missing(x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        raise error("no such operator")

    weight, bias = make(8, 6, torch.float32)
    monkeypatch.setattr(linear, "packed_linear", missing)
    layer, x = make_linear(weight, bias), torch.randn(3, 6)
    assert isinstance(layer, Plain)
    assert torch.equal(layer(x), F.linear(x, weight, bias))


def test_other_dtypes_take_the_definition() -> None:
    for kernels in ("torch", "cpp"):
        assert isinstance(make_linear(make(8, 6, torch.float64)[0], None, kernels), Plain)
    assert isinstance(make_linear(make(8, 6, torch.bfloat16)[0], None, "cpp"), OneDnn | Plain)
