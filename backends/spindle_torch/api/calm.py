"""Random numbers replaced by fixed ones, the same for each sample, so that runs can be compared.

Permutations turn the order round, so that what mixes samples by chance shows as mixing.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

__all__ = ["calmed", "draws_at_random"]

_MIDDLE = 0.5
_FILLED = frozenset(
    (
        "cauchy_",
        "exponential_",
        "geometric_",
        "log_normal_",
        "multinomial",
        "normal_",
        "rand",
        "rand_like",
        "randn",
        "randn_like",
    )
)
_KEPT = frozenset(("bernoulli", "bernoulli_"))  # ones: dropout then keeps everything
_BOUNDED = frozenset(("randint", "randint_like", "random_", "uniform_"))
_DROPOUTS = frozenset(("native_dropout", "_fused_dropout"))
_LIKE_INPUT = frozenset(("poisson", "_standard_gamma"))
_DRAWING = _FILLED | _KEPT | _BOUNDED | _DROPOUTS | _LIKE_INPUT | {"normal", "randperm"}


def draws_at_random(function: Any, named: Mapping[str, Any]) -> bool:
    """Tell whether an operation of torch's dispatcher draws random numbers."""
    name = function.overloadpacket.__name__
    return bool(named.get("dropout_p")) or name in _DRAWING


def calmed(
    function: Any,
    arguments: Sequence[Any],
    keywords: Mapping[str, Any],
    named: Mapping[str, Any],
) -> Any:
    """Give what an operation of torch's dispatcher gives, without chance; `named` has all of it.

    Few operations besides these draw random numbers (recurrent layers with dropout): theirs stay.
    """
    name = function.overloadpacket.__name__
    if named.get("dropout_p"):
        places = [item.name for item in function._schema.arguments]
        quiet = {**named, "dropout_p": 0.0}
        by_position = [quiet[place] for place in places[: len(arguments)]]
        return function(*by_position, **{key: quiet[key] for key in keywords})
    if name in _DROPOUTS:
        return named["input"].clone(), torch.ones_like(named["input"], dtype=torch.bool)
    if name in _LIKE_INPUT:
        return named["self"].clone()
    if name == "normal":
        mean, std = named.get("mean", 0.0), named.get("std", 1.0)
        return function(*arguments, **keywords).copy_(mean + _MIDDLE * std)
    result = function(*arguments, **keywords)
    if name == "randperm":
        result.copy_(torch.arange(len(result) - 1, -1, -1))
    elif name in _KEPT:
        result.fill_(1)
    elif name in _FILLED:
        result.fill_(_MIDDLE)
    elif name in _BOUNDED:
        low, high = named.get("from", named.get("low", 0)), named.get("to", named.get("high"))
        middle = _MIDDLE * (low + (1 if high is None else high))
        result.fill_(middle if result.is_floating_point() else int(middle))
    return result
