"""What a module's operations cost, read off the tensors that torch's dispatcher sees.

Sizes count 2 bytes a floating-point number, as those of all operators (bf16). What is measured is
one forward of some samples; figures are of one sample.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import Any

import torch

from spindle_sim.workload import Attention, Gemm, OperatorCost

__all__ = ["Tally", "number_bytes", "tensors_of"]

_FLOAT_BYTES = 2


def number_bytes(tensor: torch.Tensor) -> int:
    """Give the bytes of a tensor whose floating-point numbers have two each."""
    size = _FLOAT_BYTES if tensor.is_floating_point() else tensor.element_size()
    return tensor.numel() * size


def tensors_of(values: object) -> list[torch.Tensor]:
    """Give all tensors in nested lists, tuples and dicts."""
    leaves = torch.utils._pytree.tree_leaves(values)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


@dataclass(slots=True)
class Tally:
    """Operations counted so far; add two to have both."""

    gemms: Counter[tuple[int, int, int]] = field(default_factory=Counter)
    attentions: Counter[tuple[int, int, int, int, bool]] = field(default_factory=Counter)
    traffic_bytes: float = 0.0
    kernels: int = 0
    saved_bytes: float = 0.0

    @property
    def flops(self) -> float:
        """FLOP of the products and attentions of one sample."""
        return self.cost(0.0, 0.0).flops

    def add(self, other: "Tally") -> "Tally":
        """Give the sum of both."""
        return Tally(
            self.gemms + other.gemms,
            self.attentions + other.attentions,
            self.traffic_bytes + other.traffic_bytes,
            self.kernels + other.kernels,
            self.saved_bytes + other.saved_bytes,
        )

    def count(
        self, function: Any, arguments: Mapping[str, Any], result: object, samples: int
    ) -> None:
        """Count one operation of the dispatcher, its arguments by name, on so many samples."""
        if function.is_view or function.namespace == "prim":  # a question, no operation
            return
        self.kernels += 1
        counted = _COUNTED.get(function.overloadpacket)
        if counted is not None:
            counted(self, arguments, result, samples)
            return
        touched = {id(item): item for item in tensors_of([list(arguments.values()), result])}
        self.traffic_bytes += sum(map(number_bytes, touched.values())) / samples

    def cost(self, output_bytes: float, gathered_bytes: float) -> OperatorCost:
        """Give the cost of one sample."""
        return OperatorCost(
            gemms=tuple(
                Gemm(rows=rows, inner=inner, columns=columns, count=count)
                for (rows, inner, columns), count in sorted(self.gemms.items())
            ),
            attentions=tuple(
                Attention(
                    queries=queries,
                    keys=keys,
                    heads=heads,
                    head_width=width,
                    causal=causal,
                    count=count,
                )
                for (queries, keys, heads, width, causal), count in sorted(self.attentions.items())
            ),
            traffic_bytes=self.traffic_bytes,
            kernels=max(1, self.kernels),
            output_bytes=output_bytes,
            saved_replicated_bytes=self.saved_bytes,
            gathered_bytes=gathered_bytes,
        )


def _product(tally: Tally, left: torch.Tensor, right: torch.Tensor, samples: int) -> None:
    """Count (rows, inner) @ (inner, columns), or a batch of them."""
    *batch, rows, inner = left.shape
    columns = right.shape[-1]
    if not batch:
        tally.gemms[ceil(rows / samples), inner, columns] += 1
    else:
        tally.gemms[rows, inner, columns] += ceil(batch[0] / samples)


def _mm(tally: Tally, arguments: Mapping[str, Any], _: object, samples: int) -> None:
    _product(tally, arguments["self"], arguments["mat2"], samples)


def _addmm(tally: Tally, arguments: Mapping[str, Any], _: object, samples: int) -> None:
    _product(tally, arguments["mat1"], arguments["mat2"], samples)


def _baddbmm(tally: Tally, arguments: Mapping[str, Any], _: object, samples: int) -> None:
    _product(tally, arguments["batch1"], arguments["batch2"], samples)


def _convolution(tally: Tally, arguments: Mapping[str, Any], result: Any, samples: int) -> None:
    source, weight, groups = arguments["input"], arguments["weight"], arguments["groups"]
    if arguments["transposed"]:
        positions, inner, columns = source.shape[2:], weight.shape[0] // groups, weight[0].numel()
    else:
        positions, inner, columns = result.shape[2:], weight[0].numel(), weight.shape[0] // groups
    rows = positions.numel() * ceil(source.shape[0] / samples)
    tally.gemms[rows, inner, columns] += groups


def _attention(tally: Tally, arguments: Mapping[str, Any], _: object, samples: int) -> None:
    query, key = arguments["query"], arguments["key"]
    heads, queries, width = query.shape[-3:]
    batch = query.shape[:-3].numel()
    causal = bool(arguments.get("is_causal"))
    tally.attentions[queries, key.shape[-2], heads, width, causal] += ceil(batch / samples)


def _lookup(tally: Tally, arguments: Mapping[str, Any], result: Any, samples: int) -> None:
    """Count rows that are read and written, not the table."""
    del arguments
    tally.traffic_bytes += 2 * number_bytes(result) / samples


def _packets(names: Iterable[str]) -> list[Any]:
    return [getattr(torch.ops.aten, name) for name in names if hasattr(torch.ops.aten, name)]


_Counter = Callable[[Tally, Mapping[str, Any], Any, int], None]
_COUNTED: dict[Any, _Counter] = {
    **dict.fromkeys(_packets(["mm", "bmm"]), _mm),
    **dict.fromkeys(_packets(["addmm"]), _addmm),
    **dict.fromkeys(_packets(["baddbmm"]), _baddbmm),
    **dict.fromkeys(_packets(["convolution"]), _convolution),
    **dict.fromkeys(_packets(["embedding", "index_select", "gather"]), _lookup),
    **dict.fromkeys(
        _packets(
            [
                "_scaled_dot_product_flash_attention_for_cpu",
                "_scaled_dot_product_flash_attention",
                "_scaled_dot_product_efficient_attention",
                "_scaled_dot_product_cudnn_attention",
                "_scaled_dot_product_fused_attention_overrideable",
            ]
        ),
        _attention,
    ),
}
