"""Device and dtype: chosen in one place, refused by name."""

import pytest
import torch

from minivllm.device import available_bytes, choose_device, choose_dtype


def test_the_default_fits_the_machine():
    device = choose_device("auto")
    assert device.type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert choose_dtype("auto", torch.device("cpu")) == torch.float32
    assert choose_dtype("auto", torch.device("cuda")) == torch.bfloat16


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16"])
def test_a_dtype_by_name_or_as_it_is(name: str):
    cpu = choose_device("cpu")
    expected = getattr(torch, name)
    for dtype in (name, f"torch.{name}", expected):
        assert choose_dtype(dtype, cpu) == expected


@pytest.mark.parametrize("dtype", ["int8", "float64", torch.int32, None, "Float32"])
def test_any_other_dtype_is_refused(dtype: object):
    with pytest.raises(ValueError, match="dtype must be auto, float32, bfloat16, float16, got"):
        choose_dtype(dtype, torch.device("cpu"))


@pytest.mark.parametrize("device", ["nowhere", "cpu:x", 5, "meta", "mps"])
def test_any_other_device_is_refused(device: object):
    with pytest.raises(ValueError, match="device"):
        choose_device(device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA is present")
def test_cuda_that_is_not_there():
    with pytest.raises(ValueError, match="device is 'cuda:0', but torch sees no CUDA device"):
        choose_device("cuda:0")


def test_available_bytes_are_what_the_system_tells():
    available = available_bytes(torch.device("cpu"))
    assert available is None or 0 < available < 1 << 50
