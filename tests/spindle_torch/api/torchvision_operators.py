"""torchvision where its compiled part doesn't fit torch.

Its wheel on PyPI is made for a torch with CUDA: beside a CPU build of torch its operators can't be
loaded, and importing it fails since two of them have no definition. No model here uses them.
"""

import torch


def define_missing_operators() -> None:
    """Declare the operators that importing torchvision asks for, unless it has them."""
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        library = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
        for name in ("nms", "qnms"):
            schema = f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            library.define(schema)  # type: ignore[no-untyped-call]
        _KEPT.append(library)


_KEPT: list[torch.library.Library] = []  # definitions end with their library
