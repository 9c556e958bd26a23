"""Where a model may be cut: its repeated blocks, and the largest modules beside them (section 3.1).

A leaf runs whole, as the real module that it is. Parameters that lie in no leaf are used by the
code between leaves, which runs with what follows it.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from torch import nn

from spindle_sim.errors import InputError

__all__ = ["Leaves", "find_leaves"]

_FEWEST = 2  # blocks of one class beside each other that count as repeated


@dataclass(slots=True, kw_only=True)
class Leaves:
    """The leaves by full name, and of repeated blocks the container's name and their position."""

    modules: dict[str, nn.Module] = field(default_factory=dict)
    stacks: dict[str, tuple[str, int]] = field(default_factory=dict)


def find_leaves(
    roots: Mapping[str, nn.Module],
    *,
    whole: Collection[nn.Module] = (),
    coupled: Collection[nn.Module] = (),
    blocks: Collection[type[nn.Module]] = (),
) -> Leaves:
    """Give the leaves of all modules, each object once, under the first name that it has.

    Those in `whole` are not cut; those in `coupled` are leaves, wherever they lie. With `blocks`
    modules of these classes are the repeated ones, otherwise children of a list or sequence whose
    class it has at least twice.

    Raises:
        InputError: a module can't be cut or kept as it is to be; it is named.
    """
    leaves = Leaves()
    seen: set[int] = set()
    for name, module in roots.items():
        search = _Search(
            leaves, seen, frozenset(map(id, whole)), frozenset(map(id, coupled)), tuple(blocks)
        )
        _visit(search, name, module)
    found = set(map(id, leaves.modules.values()))
    for module in coupled:
        if id(module) not in found:
            raise InputError(
                f"coupled: a {type(module).__name__} lies within a module that isn't cut (a"
                " repeated block, or one in `whole`); name that one in its place"
            )
    return leaves


@dataclass(frozen=True, slots=True)
class _Search:
    leaves: Leaves
    seen: set[int]
    whole: frozenset[int]
    coupled: frozenset[int]
    blocks: tuple[type[nn.Module], ...]

    def repeated(self, module: nn.Module) -> list[str]:
        """Give the names of the children that are repeated blocks."""
        children = dict(module.named_children())
        if self.blocks:
            return [name for name, child in children.items() if isinstance(child, self.blocks)]
        if not isinstance(module, (nn.ModuleList, nn.Sequential)):
            return []
        kinds = [type(child) for child in children.values()]
        return [
            name
            for name, child in children.items()
            if kinds.count(type(child)) >= _FEWEST and _is_block(child)
        ]

    def is_cut(self, module: nn.Module) -> bool:
        """Tell whether a module is taken apart: for its blocks, or for a coupled part."""
        if id(module) in self.whole:
            return False
        parts = list(module.modules())
        return any(id(part) in self.coupled for part in parts) or any(map(self.repeated, parts))


def _is_block(module: nn.Module) -> bool:
    """Tell whether a module is more than a layer of torch's own, such as a `Linear`."""
    composed = any(True for _ in module.children())
    return (composed or not type(module).__module__.startswith("torch.nn")) and _has_weights(module)


def _has_weights(module: nn.Module) -> bool:
    return any(True for _ in module.parameters())


def _visit(search: _Search, name: str, module: nn.Module) -> None:
    if id(module) in search.seen:
        return
    search.seen.add(id(module))
    _refuse(name, module)
    if not search.is_cut(module):
        if _has_weights(module) or id(module) in search.whole:
            _add(search, name, module)
        return
    repeated = search.repeated(module)
    for position, (child_name, child) in enumerate(module.named_children()):
        full = f"{name}.{child_name}"
        if child_name not in repeated:
            _visit(search, full, child)
        elif id(child) not in search.seen:
            search.seen.update(id(part) for part in child.modules())
            _refuse(full, child)
            _add(search, full, child)
            search.leaves.stacks[full] = (name, position)


def _add(search: _Search, name: str, module: nn.Module) -> None:
    search.leaves.modules[name] = module
    if id(module) in search.coupled:
        return  # it gets the whole batch
    for part_name, part in _parts(name, module):
        if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.training:
            raise InputError(
                f"{part_name} ({type(part).__name__}): normalizes over the batch while it trains,"
                " which is divided over devices; use GroupNorm or LayerNorm, call .eval() on it, or"
                " add its module with coupled=True"
            )


def _parts(name: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for part_name, part in module.named_modules():
        yield (f"{name}.{part_name}" if part_name else name), part


def _refuse(name: str, module: nn.Module) -> None:
    for parameter_name, parameter in module.named_parameters(recurse=False):
        if isinstance(parameter, nn.UninitializedParameter):
            raise InputError(
                f"{name}.{parameter_name}: has no shape yet; run the lazy module once before"
            )
