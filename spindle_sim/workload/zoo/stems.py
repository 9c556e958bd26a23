"""Stems that several families share: what turns a picture, a spectrogram or a window to tokens."""

from spindle_sim.workload.cost import Gemm
from spindle_sim.workload.operators import BYTES_PER_ELEMENT, Custom

__all__ = ["patch_stem"]


def patch_stem(
    *, patches: int, patch_size: int, width: int, tokens: int, parameters: int, norm: bool
) -> Custom:
    """Give a convolution whose windows make `patches` rows of `patch_size` values each.

    `tokens` leave it: the patches and a class token, where there is one; positions are added.
    `parameters` count the kernel, the class token, the positions and the norm. The class token
    costs no product, so that the rows of the product are the patches alone.
    """
    window_bytes = BYTES_PER_ELEMENT * patches * patch_size
    output_bytes = BYTES_PER_ELEMENT * tokens * width
    return Custom(
        name="patch-stem",
        parameters=parameters,
        gemms=(Gemm(rows=patches, inner=patch_size, columns=width),),
        # The windows are written once (im2col); positions are added; a norm reads and writes.
        traffic_bytes=float(window_bytes + 2 * output_bytes * (1 + norm)),
        kernels=4 + norm,
        output_bytes=float(output_bytes),
        saved_bytes=float(window_bytes + output_bytes * norm),
    )
