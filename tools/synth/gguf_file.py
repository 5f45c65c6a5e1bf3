"""The container of a GGUF file, written with the standard library alone.

A file is a header of key-value pairs, a list of tensors (name, shape with the innermost dimension first, type, offset) and
the tensors' data, each aligned.
"""
import struct

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
FORMATS = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "B", U64: "Q", I64: "q", F64: "d"}
TENSOR_F32 = 0


def text(value):
    data = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(data)) + data


def value_bytes(kind, value):
    if isinstance(value, bytes):  # spoiled by a test
        return value
    if kind == STRING:
        return text(value)
    if kind == ARRAY:
        element, values = value
        return struct.pack("<IQ", element, len(values)) + b"".join(value_bytes(element, one) for one in values)
    return struct.pack("<" + FORMATS[kind], value)


class Tensor:
    """A tensor; `dims` begin with the innermost. Without `data` it has `num_bytes`, which the caller writes."""

    def __init__(self, name, dims, data=None, kind=TENSOR_F32, num_bytes=None):
        self.name, self.dims, self.data, self.kind = name, dims, data, kind
        self.num_bytes = num_bytes
        self.offset = None  # None: after the tensor before


class Gguf:
    """A file, of which a test may spoil anything before it is written."""

    def __init__(self):
        self.magic, self.version, self.alignment = b"GGUF", 3, 32
        self.fields, self.tensors = [], []
        self.num_fields = self.num_tensors = None  # None: the true number

    def set(self, key, kind, value):
        self.fields = [field for field in self.fields if field[0] != key] + [(key, kind, value)]
        return self

    def tensor(self, name):
        return next(tensor for tensor in self.tensors if tensor.name == name)

    def header(self):
        out = self.magic + struct.pack("<IQQ", self.version,
                                       len(self.tensors) if self.num_tensors is None else self.num_tensors,
                                       len(self.fields) if self.num_fields is None else self.num_fields)
        for key, kind, value in self.fields:
            out += text(key) + struct.pack("<I", kind) + value_bytes(kind, value)
        end = 0
        for tensor in self.tensors:
            offset = end if tensor.offset is None else tensor.offset
            out += text(tensor.name) + struct.pack("<I", len(tensor.dims))
            out += b"".join(struct.pack("<Q", dim % (1 << 64)) for dim in tensor.dims)
            out += struct.pack("<IQ", tensor.kind, offset % (1 << 64))
            num_bytes = tensor.num_bytes if tensor.data is None else len(tensor.data)
            end = -(-(end + num_bytes) // self.alignment) * self.alignment
        return out

    def bytes(self):
        out = self.header()
        for tensor in self.tensors:
            out += b"\0" * (-len(out) % self.alignment) + tensor.data
        return out
