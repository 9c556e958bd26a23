"""Synthetic data and targets: every sample is drawn by its name, whichever rank asks for it."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from spindle_sim.workload import ContrastiveLoss, Custom, Embedding, Projection, TransformerLayer
from spindle_torch.drawing import drawn_normal, drawn_tokens
from spindle_torch.shapes import CustomShape, Site

__all__ = ["DataSource"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSource:
    """The data of one iteration: (samples, items, tokens, ...) for a run of samples of a task."""

    seed: int
    step: int
    dtype: torch.dtype
    device: torch.device

    def inputs(
        self, site: Site, first: int, last: int, custom: CustomShape | None = None
    ) -> torch.Tensor | None:
        """Give what the site's first operator reads of its own: token ids, features or nothing."""
        if not site.data_tokens:
            return None
        shape = (site.items, site.data_tokens)
        match site.operator:
            case Embedding():
                vocabulary = site.operator.vocabulary
                return self._tokens(f"{site.metaop}/data", first, last, shape, below=vocabulary)
            case TransformerLayer():
                width = site.operator.width
            case Projection():
                width = site.operator.inner
            case Custom():
                assert custom is not None, f"{site.parameter_set}: custom, without its shape"
                width = custom.input_width
            case ContrastiveLoss():  # has two inputs, or the site would have been refused
                return None
        return self._normal(f"{site.metaop}/data", first, last, (*shape, width))

    def targets(self, site: Site, first: int, last: int) -> torch.Tensor | None:
        """Give what the loss at the end of a task compares with: labels or features, if any."""
        if not site.is_sink or isinstance(site.operator, ContrastiveLoss):
            return None
        shape = (site.items, site.tokens)
        name = f"{site.metaop}/target"
        if isinstance(site.operator, Projection) and site.operator.logits:
            return self._tokens(name, first, last, shape, below=site.operator.columns)
        return self._normal(name, first, last, (*shape, site.passed.width))

    def _normal(self, name: str, first: int, last: int, shape: tuple[int, ...]) -> torch.Tensor:
        drawn = self._each(name, first, last, lambda each: drawn_normal(each, self.seed, shape))
        return drawn.to(dtype=self.dtype, device=self.device)

    def _tokens(
        self, name: str, first: int, last: int, shape: tuple[int, ...], *, below: int
    ) -> torch.Tensor:
        drawn = self._each(
            name, first, last, lambda each: drawn_tokens(each, self.seed, shape, below)
        )
        return drawn.to(device=self.device)

    def _each(
        self, name: str, first: int, last: int, draw: Callable[[str], torch.Tensor]
    ) -> torch.Tensor:
        drawn = [draw(f"{name}/{self.step}/{sample}") for sample in range(first, last)]
        # Of no samples the shape is still asked for.
        return torch.stack(drawn) if drawn else draw(f"{name}/{self.step}/none").unsqueeze(0)[:0]
