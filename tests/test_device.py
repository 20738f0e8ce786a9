"""Device and dtype: chosen in one place, refused by name."""

import pytest
import torch

from minivllm import device as device_module
from minivllm.device import (
    available_bytes,
    choose_attention_backend,
    choose_device,
    choose_dtype,
)


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


def test_attention_on_a_cpu_is_torch_unless_the_interpreter_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
):
    """Thousands of times slower, the interpreter is never taken by itself."""
    cpu = torch.device("cpu")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    chosen = [choose_attention_backend(name, cpu) for name in ("auto", "torch", "triton")]
    assert chosen == ["torch", "torch", "triton"]
    monkeypatch.delenv("TRITON_INTERPRET")
    assert choose_attention_backend("auto", cpu) == "torch"
    with pytest.raises(ValueError, match="'triton', but the device is cpu, and TRITON_INTERPRET"):
        choose_attention_backend("triton", cpu)


def test_attention_on_a_gpu_is_triton_where_it_can_run(monkeypatch: pytest.MonkeyPatch):
    """A pretended GPU: new enough, too old, and one whose triton is missing."""
    gpu = torch.device("cuda")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(device_module, "find_spec", lambda name: name)
    assert [choose_attention_backend(name, gpu) for name in ("auto", "triton")] == ["triton"] * 2
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert choose_attention_backend("auto", gpu) == "torch"
    with pytest.raises(ValueError, match="'triton', but the GPU has compute capability 7.5"):
        choose_attention_backend("triton", gpu)
    monkeypatch.setattr(device_module, "find_spec", lambda name: None)
    assert choose_attention_backend("auto", gpu) == "torch"
    with pytest.raises(ValueError, match="'triton', but the package triton is not installed"):
        choose_attention_backend("triton", gpu)


@pytest.mark.parametrize("backend", ["Triton", "", None, "flash"])
def test_any_other_attention_is_refused(backend: object):
    with pytest.raises(ValueError, match="attention_backend must be auto, torch or triton, got"):
        choose_attention_backend(backend, torch.device("cpu"))


def test_available_bytes_are_what_the_system_tells():
    available = available_bytes(torch.device("cpu"))
    assert available is None or 0 < available < 1 << 50
