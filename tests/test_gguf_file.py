"""The GGUF reader against the `gguf` library's own writer, reader and arithmetic."""

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type

from minivllm.gguf_file import ELEMENTS_AT_ONCE, GGUFFile
from minivllm.model_files import find_model


def write_tensor(path: Path, data: np.ndarray, kind: Type, alignment: int = 32) -> Path:
    """A file of one tensor "t", whose bytes are given."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_custom_alignment(alignment)
    writer.add_tensor("first", np.arange(5, dtype=np.float32))  # so that "t" starts after padding
    writer.add_tensor("t", data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


WORST_ERRORS = [  # of N(0, 1) numbers within 4 of 0: half a step of the type's grid, rounded up
    (Type.F32, 0.0),
    (Type.F16, 2**-10),
    (Type.BF16, 2**-7),
    (Type.Q8_0, 0.02),
    (Type.Q4_0, 0.55),
    (Type.Q4_1, 0.27),
]


@pytest.mark.parametrize(("kind", "worst"), WORST_ERRORS)
def test_numbers_of_each_type(kind: Type, worst: float, tmp_path: Path):
    """What was quantized comes back in its shape, as near as the type allows."""
    array = np.random.default_rng(0).standard_normal((6, 64)).astype(np.float32)
    path = write_tensor(tmp_path / "m.gguf", gguf.quants.quantize(array, kind), kind)
    got = GGUFFile(path).read_tensor("t")
    assert got.shape == (6, 64) and got.dtype == np.float32
    assert np.abs(got - array).max() <= worst


@pytest.mark.parametrize("kind", [Type.Q4_K, Type.Q6_K, Type.Q5_0, Type.IQ4_NL])
def test_every_type_the_library_knows(kind: Type, tmp_path: Path):
    """K-quants too: arbitrary bytes are read as the library reads them row by row."""
    block_bytes = gguf.GGML_QUANT_SIZES[kind][1]
    data = np.random.default_rng(1).integers(0, 255, (7, 3 * block_bytes), dtype=np.uint8)
    file = GGUFFile(write_tensor(tmp_path / "m.gguf", data, kind, alignment=64))
    with np.errstate(all="ignore"):
        got, expected = file.read_tensor("t"), gguf.quants.dequantize(data, kind)
    np.testing.assert_array_equal(got, expected)


def test_a_tensor_larger_than_one_piece(tmp_path: Path):
    """Pieces are joined without a seam: three and a bit, cut inside a row."""
    rows = 3 * ELEMENTS_AT_ONCE // 96 + 5
    array = np.random.default_rng(2).standard_normal((rows, 96)).astype(np.float32)
    data = gguf.quants.quantize(array, Type.Q8_0)
    got = GGUFFile(write_tensor(tmp_path / "m.gguf", data, Type.Q8_0)).read_tensor("t")
    np.testing.assert_array_equal(got, gguf.quants.dequantize(data, Type.Q8_0))


def test_values_of_each_type(tmp_path: Path):
    """Scalars, strings and arrays of both, as they were written."""
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_uint8("u8", 200)
    writer.add_int8("i8", -3)
    writer.add_int32("i32", -70000)
    writer.add_uint64("u64", 2**40)
    writer.add_float32("f32", 0.5)
    writer.add_float64("f64", 0.1)
    writer.add_bool("flag", True)
    writer.add_string("text", "snö ❄")
    writer.add_array("numbers", [1, -2, 3])
    writer.add_array("strings", ["", "Ġt", "🙂"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    values = GGUFFile(tmp_path / "m.gguf").metadata
    expected = {"u8": 200, "i8": -3, "i32": -70000, "u64": 2**40, "f32": 0.5, "f64": 0.1}
    expected |= {"flag": True, "text": "snö ❄", "numbers": [1, -2, 3], "strings": ["", "Ġt", "🙂"]}
    assert {key: values[key] for key in expected} == expected


@pytest.mark.model
def test_the_real_file_as_the_library_reads_it(smollm2: str):
    """SmolLM2's table and one tensor of each of its types, against gguf.GGUFReader."""
    path = find_model(smollm2)
    file, reader = GGUFFile(path), gguf.GGUFReader(path)
    theirs = {t.name: t for t in reader.tensors}
    assert len(theirs) == 272 and list(file.tensors) == list(theirs)
    for name, tensor in file.tensors.items():
        assert tensor.shape == tuple(theirs[name].shape.tolist())[::-1]
        assert tensor.offset == theirs[name].data_offset
    for name in ("token_embd.weight", "blk.3.attn_q.weight", "output_norm.weight"):
        expected = gguf.quants.dequantize(theirs[name].data, theirs[name].tensor_type)
        np.testing.assert_array_equal(file.read_tensor(name), expected)
    assert len(file.metadata) == 33
    for key, value in file.metadata.items():
        assert value == reader.fields[key].contents(), key


def test_a_file_cut_anywhere_is_called_truncated(tmp_path: Path):
    """Every proper prefix of a file ends in one line with its size: header, table or array."""
    whole = write_tensor(tmp_path / "m.gguf", np.ones((2, 8), np.float32), Type.F32).read_bytes()
    cut = tmp_path / "cut.gguf"
    for size in range(4, len(whole)):
        cut.write_bytes(whole[:size])
        if whole[size:].strip(b"\0") == b"":
            continue  # only padding is gone
        with pytest.raises(ValueError, match=rf"cut.gguf: truncated GGUF.* {size} bytes$"):
            GGUFFile(cut)


def test_a_count_from_nowhere_is_called_truncated(tmp_path: Path):
    """A damaged length of 2**60 ends in the same line, not in an endless loop or a MemoryError."""
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"k"
    for value in (struct.pack("<IQ", 8, 2**60), struct.pack("<IIQ", 9, 4, 2**60)):
        (tmp_path / "m.gguf").write_bytes(head + value)
        with pytest.raises(ValueError, match="truncated GGUF: the header needs .* the file has"):
            GGUFFile(tmp_path / "m.gguf")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not a GGUF file"),
        (b"PK\x03\x04 something else", "not a GGUF file"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "GGUF version 1, supported are 2 and 3"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "GGUF version 50331648"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"k\x63\0\0\0", "type 99"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"\xff", "UTF-8"),
        (
            b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + 2 * (struct.pack("<Q", 1) + b"k\0\0\0\0\7"),
            "k appears twice",
        ),
    ],
)
def test_no_gguf(data: bytes, message: str, tmp_path: Path):
    """Another format, version or byte order, and damage, each in one line."""
    (tmp_path / "m.gguf").write_bytes(data)
    with pytest.raises(ValueError, match=message) as caught:
        GGUFFile(tmp_path / "m.gguf")
    assert "m.gguf" in str(caught.value) and "\n" not in str(caught.value)


def test_an_unsupported_type_names_its_tensor(tmp_path: Path):
    """Integers are stored in some files but are no weights; nothing is made up for them."""
    path = write_tensor(tmp_path / "m.gguf", np.ones(4, np.int32), Type.I32)
    with pytest.raises(ValueError, match="tensor t has the type I32, which cannot be dequantized"):
        GGUFFile(path).read_tensor("t")


def test_an_unknown_type_names_its_tensor(tmp_path: Path):
    """A type number newer than the library: its size is not even known."""
    table = struct.pack("<Q", 1) + b"t" + struct.pack("<IQIQ", 1, 4, 250, 0)
    (tmp_path / "m.gguf").write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + table)
    with pytest.raises(ValueError, match="tensor t has the unknown type 250"):
        GGUFFile(tmp_path / "m.gguf")
