"""What modules keep to themselves: tensors that a leaf made and that pass by its output.

An attribute, a list or an object that torch can't look into carries them to other code. On a device
that doesn't run the leaf they aren't there, or are those of another step.
"""

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from spindle_sim.errors import InputError

__all__ = ["Kept", "check_owned", "storage_of"]


class Kept:
    """Which leaf made what of data, of parameters or by chance, while one forward runs."""

    def __init__(self) -> None:
        self._makers: dict[int, int] = {}
        self._fresh: dict[int, int] = {}
        self._outside: set[int] = set()
        self._weak: list[StorageWeakRef] = []  # while one is held an address isn't another's

    def enter(self, tensors: Collection[torch.Tensor]) -> None:
        """Take what depends on the data: the batch, or what code outside of leaves made of it."""
        self._outside.update(map(storage_of, tensors))

    def of_data(self, tensors: Collection[torch.Tensor]) -> bool:
        """Tell whether any of them depends on the data, outside of leaves."""
        return any(storage_of(tensor) in self._outside for tensor in tensors)

    def made_within(self, call: int, tensor: torch.Tensor) -> bool:
        """Tell whether a leaf's call made the tensor."""
        return self._fresh.get(storage_of(tensor)) == call

    def make(
        self,
        call: int,
        read: Sequence[torch.Tensor],
        made: Sequence[torch.Tensor],
        *,
        depends: bool,
    ) -> None:
        """Note what a leaf's call made; `depends` says whether of something that counts."""
        known = {storage_of(tensor) for tensor in read}
        depends = depends or any(self._makers.get(place) == call for place in known)
        for tensor in made:
            place = storage_of(tensor)
            if place not in known:
                self._fresh[place] = call
                weak: Any = StorageWeakRef
                self._weak.append(weak(tensor.untyped_storage()))
            if depends and self._fresh.get(place) == call:
                self._makers[place] = call

    def give(self, tensors: Collection[torch.Tensor]) -> None:
        """Take what a leaf gave: others may read it."""
        for tensor in tensors:
            self._makers.pop(storage_of(tensor), None)

    def check(self, read: Sequence[torch.Tensor], call: int | None, leaves: Sequence[str]) -> None:
        """Check that nobody but the call that made them reads tensors, `call` or code outside.

        Raises:
            InputError: another one does.
        """
        for tensor in read:
            maker = self._makers.get(storage_of(tensor))
            if maker is not None and maker != call:
                raise InputError(
                    f"{leaves[maker]}: keeps a tensor that it made, which is read later (an"
                    " attribute, a list, an object that torch can't look into); devices that"
                    " don't run this module haven't got it: give it as an output (tensors, or"
                    " tuples and dicts of them), or have one module that holds both, and name"
                    " that in `whole`"
                )


def check_owned(read: Sequence[torch.Tensor], known: Collection[int], where: str) -> None:
    """Check that parameters which are used belong to a module of a task.

    Raises:
        InputError: nobody would train one of them.
    """
    for tensor in read:
        if isinstance(tensor, nn.Parameter) and tensor.requires_grad:
            if storage_of(tensor) in known:
                continue
            raise InputError(
                f"{where}: uses a parameter of the shape {tuple(tensor.shape)} that belongs to no"
                " module of any task, so that it would never be trained; add the module that has"
                " it (a function can't hold parameters), or freeze it: requires_grad_(False)"
            )


def storage_of(tensor: Any) -> int:
    """Give what tells one storage from another, as long as it is there."""
    return int(tensor.untyped_storage()._cdata)
