"""Recorded routings: the experts that each row chose."""
import dataclasses
import os

import numpy
import numpy.typing

from penstock import _penstock
from penstock._base import valid_text


@dataclasses.dataclass(frozen=True, eq=False)
class Routing:
    """A routing of LLM(..., record_routing=FILE). Rows are in the order in which they were computed."""

    model: str
    num_experts: int
    sequence_ids: "numpy.typing.NDArray[numpy.uint32]"  # [num_rows]
    positions: "numpy.typing.NDArray[numpy.uint32]"  # [num_rows], the token's place in its sequence
    experts: "numpy.typing.NDArray[numpy.int32]"  # [num_rows, num_layers, num_topk]; -1: the layer left the row out


def read_routing(path: str | os.PathLike[str]) -> Routing:
    """Reads the file of a closed LLM, or of `penstock run --record-routing`."""
    header, sequence_ids, positions, experts = _penstock.read_routing(valid_text("path", os.fspath(path)))
    return Routing(header["model"], header["num_experts"], sequence_ids, positions, experts)
