"""The GGUF container: a header of named values, a table of tensors, one array read at a time.

    "GGUF" | version u32 | tensor count u64 | value count u64
    value  = name | type u32 | value                (name = length u64 + bytes)
    tensor = name | dimensions u32 | sizes u64, innermost first | type u32 | offset u64
    padding up to a multiple of general.alignment, then the arrays

Invariant: every read is checked against the file's size, so a cut or damaged file ends in one line
that says where. What the values and tensors mean for a model is left to weights_gguf.py; the
arithmetic of the quantized types is the `gguf` library's. (Its GGUFReader reads the same header,
but takes seconds for a vocabulary of 49,152 strings.)
Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import mmap
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import gguf
import numpy as np

# struct's letter for each scalar type; 8 is a string, 9 an array.
SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
STRING, ARRAY = 8, 9
ELEMENTS_AT_ONCE = 1 << 18  # dequantized in one go: 1 MiB of float32, which stays in the cache


@dataclass(frozen=True)
class GGUFTensor:
    """One row of the tensor table; `shape` is in torch's order (outermost first)."""

    name: str
    shape: tuple[int, ...]
    type: gguf.GGMLQuantizationType
    offset: int  # bytes from the start of the file
    nbytes: int


class GGUFFile:
    """A GGUF file, opened: `metadata` by name, `tensors` by name, `read_tensor` for the numbers.

    Raises ValueError when the file is no GGUF, of another version, cut short or damaged.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.size = self.path.stat().st_size
        with self.path.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise ValueError(f"{self.path} is not a GGUF file: it does not begin with 'GGUF'")
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._at = 4
        version, num_tensors, num_values = self._unpack("I")[0], *self._unpack("QQ")
        if version not in (2, 3):
            raise ValueError(f"{self.path}: GGUF version {version}, supported are 2 and 3")
        self.metadata: dict[str, Any] = {}
        for _ in range(num_values):
            key = self._string()
            self._add_once(self.metadata, key, self._value(self._unpack("I")[0]))
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1:
            raise ValueError(
                f"{self.path}: general.alignment is {alignment!r}, not a positive number"
            )
        rows = [self._tensor_row() for _ in range(num_tensors)]
        data_start = -(-self._at // alignment) * alignment
        self.tensors: dict[str, GGUFTensor] = {}
        for row in rows:
            self._add_once(self.tensors, row[0], self._place(data_start, *row))

    def read_tensor(self, name: str) -> np.ndarray:
        """The array called `name` as float32, in its shape of the table.

        Blocks of a quantized type are independent, so the array goes to `gguf.quants.dequantize`
        in a few long rows: twice as fast as row by row, and what the library needs in between stays
        small. Raises ValueError naming a tensor whose type the library cannot dequantize.
        """
        tensor = self.tensors[name]
        raw = np.frombuffer(self._bytes, np.uint8, tensor.nbytes, tensor.offset)  # [nbytes]
        block_elements, block_bytes = gguf.GGML_QUANT_SIZES[tensor.type]
        elements = ELEMENTS_AT_ONCE // block_elements * block_elements
        step = elements // block_elements * block_bytes
        out = np.empty(prod(tensor.shape), np.float32)  # [elements of the whole]
        for index, start in enumerate(range(0, tensor.nbytes, step)):
            try:
                piece = gguf.quants.dequantize(raw[None, start : start + step], tensor.type)
            except NotImplementedError as error:
                raise ValueError(
                    f"{self.path}: tensor {name} has the type {tensor.type.name}, which cannot be "
                    "dequantized"
                ) from error
            out[index * elements : (index + 1) * elements] = piece[0]
        return out.reshape(tensor.shape)  # [*shape]

    def _take(self, nbytes: int) -> int:
        """Move past `nbytes` of the header and return where they begin."""
        start = self._at
        if nbytes > self.size - start:
            raise ValueError(
                f"{self.path}: truncated GGUF: the header needs {nbytes} bytes at {start}, "
                f"the file has {self.size} bytes"
            )
        self._at = start + nbytes
        return start

    def _unpack(self, letters: str) -> tuple[Any, ...]:
        letters = "<" + letters
        return struct.unpack_from(letters, self._bytes, self._take(struct.calcsize(letters)))

    def _string(self) -> str:
        (length,) = self._unpack("Q")
        start = self._take(length)
        try:
            return self._bytes[start : start + length].decode()
        except UnicodeDecodeError as error:
            raise ValueError(f"{self.path}: damaged GGUF: no UTF-8 string at {start}") from error

    def _value(self, kind: int) -> Any:
        if kind == STRING:
            return self._string()
        if kind in SCALARS:
            return self._unpack(SCALARS[kind])[0]
        if kind != ARRAY:
            raise ValueError(f"{self.path}: damaged GGUF: value type {kind} at {self._at}")
        item_kind, count = self._unpack("IQ")
        if item_kind in SCALARS:
            width = struct.calcsize("<" + SCALARS[item_kind])
            start = self._take(count * width)
            return list(struct.unpack_from(f"<{count}{SCALARS[item_kind]}", self._bytes, start))
        if item_kind != STRING:
            raise ValueError(f"{self.path}: arrays of value type {item_kind} are not supported")
        return [self._string() for _ in range(count)]

    def _tensor_row(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._string()
        (dimensions,) = self._unpack("I")
        if not 1 <= dimensions <= 4:
            raise ValueError(f"{self.path}: tensor {name} has {dimensions} dimensions, not 1 to 4")
        shape = self._unpack(f"{dimensions}Q")[::-1]
        return name, shape, *self._unpack("IQ")

    def _place(
        self, data_start: int, name: str, shape: tuple[int, ...], kind: int, offset: int
    ) -> GGUFTensor:
        try:
            type_ = gguf.GGMLQuantizationType(kind)
            block_elements, block_bytes = gguf.GGML_QUANT_SIZES[type_]
        except (ValueError, KeyError) as error:
            raise ValueError(f"{self.path}: tensor {name} has the unknown type {kind}") from error
        if shape[-1] % block_elements:
            raise ValueError(
                f"{self.path}: tensor {name} has rows of {shape[-1]}, no multiple of "
                f"{type_.name}'s block of {block_elements}"
            )
        nbytes = prod(shape) // block_elements * block_bytes
        start = data_start + offset
        if start + nbytes > self.size:
            raise ValueError(
                f"{self.path}: truncated GGUF: tensor {name} ends at byte {start + nbytes}, "
                f"the file has {self.size} bytes"
            )
        return GGUFTensor(name, shape, type_, start, nbytes)

    def _add_once(self, table: dict[str, Any], name: str, value: Any) -> None:
        if name in table:
            raise ValueError(f"{self.path}: damaged GGUF: {name} appears twice")
        table[name] = value
