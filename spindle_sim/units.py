"""Quantities as users write them ("400Gb/s", "80GiB") to numbers in SI units, and back.

Bits and bytes, decimal and binary multiples are told apart; a bare number is refused, since
"400" could mean either. Numbers out: bytes, bytes per second, FLOP per second, seconds.
"""

import re

from spindle_sim.errors import InputError

__all__ = [
    "counted",
    "format_bandwidth",
    "format_bit_rate",
    "format_bytes",
    "format_duration",
    "parse_bandwidth",
    "parse_bytes",
    "parse_duration",
    "parse_flops",
]

_DECIMAL = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
_PER_SECOND = {"s": 1.0, "ms": 1e3, "us": 1e6, "µs": 1e6, "ns": 1e9, "min": 1 / 60, "h": 1 / 3600}
_LARGEST = 1e100
_QUANTITY = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)\s*([A-Za-zµ/]+)\s*")


def counted(number: int, noun: str) -> str:
    """Give "1 task" or "1,024 tasks"; a plural ends in "s"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def parse_bytes(text: str) -> float:
    """Give the number of bytes in "80GiB" or "2GB".

    Raises:
        InputError: the text has no unit, another unit, or isn't a positive quantity.
    """
    number, unit = _split(text, "a size such as 80GiB or 2GB")
    if not unit.endswith("B"):
        raise InputError(f"{text!r}: expected a size in bytes such as 80GiB or 2GB")
    return _positive(number * _multiple(unit[:-1], text, "a size such as 80GiB or 2GB"), text)


def parse_bandwidth(text: str) -> float:
    """Give the bytes per second in "400Gb/s" (bits), "50GB/s" (bytes) or "400Gbps" (bits).

    Raises:
        InputError: the text has no unit, another unit, or isn't a positive quantity.
    """
    wanted = "a bandwidth such as 400Gb/s (bits) or 50GB/s (bytes)"
    number, unit = _split(text, wanted)
    if unit.endswith("bps"):
        return _positive(number * _multiple(unit[:-3], text, wanted) / 8.0, text)
    if unit.endswith("b/s"):
        return _positive(number * _multiple(unit[:-3], text, wanted) / 8.0, text)
    if unit.endswith("B/s"):
        return _positive(number * _multiple(unit[:-3], text, wanted), text)
    raise InputError(f"{text!r}: expected {wanted}")


def parse_flops(text: str) -> float:
    """Give the FLOP per second in "312TFLOPS" or "312TFLOP/s".

    Raises:
        InputError: the text has no unit, another unit, or isn't a positive quantity.
    """
    wanted = "a compute rate such as 312TFLOP/s"
    number, unit = _split(text, wanted)
    for ending in ("FLOP/s", "FLOPS", "FLOPs"):
        if unit.endswith(ending):
            return _positive(number * _multiple(unit[: -len(ending)], text, wanted), text)
    raise InputError(f"{text!r}: expected {wanted}")


def parse_duration(text: str) -> float:
    """Give the seconds in "5us", "1.5ms" or "2s"; none at all ("0us") is a duration too.

    Raises:
        InputError: the text has no unit, another unit, or isn't a quantity.
    """
    wanted = "a duration such as 5us or 1.5ms"
    number, unit = _split(text, wanted)
    if unit not in _PER_SECOND:
        raise InputError(f"{text!r}: expected {wanted}")
    return number / _PER_SECOND[unit]  # a division, so that "10us" is 1e-05 to the last bit


def format_bytes(size_bytes: float) -> str:
    """Give a size as a person reads it, in binary multiples: "1.50 GiB"."""
    for unit, factor in (("TiB", 2.0**40), ("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10)):
        if abs(size_bytes) >= factor:
            return f"{size_bytes / factor:.2f} {unit}"
    return f"{size_bytes:.0f} B"


def format_bandwidth(bandwidth_bytes_per_s: float) -> str:
    """Give a bandwidth in decimal bytes per second: "50.0 GB/s"."""
    for unit, factor in (("TB/s", 1e12), ("GB/s", 1e9), ("MB/s", 1e6)):
        if bandwidth_bytes_per_s >= factor:
            return f"{bandwidth_bytes_per_s / factor:.1f} {unit}"
    return f"{bandwidth_bytes_per_s:.0f} B/s"


def format_bit_rate(bandwidth_bytes_per_s: float) -> str:
    """Give a bandwidth in bits per second, as network cards are sold: 50e9 is "400 Gb/s"."""
    bits_per_s = 8.0 * bandwidth_bytes_per_s
    for unit, factor in (("Tb/s", 1e12), ("Gb/s", 1e9), ("Mb/s", 1e6), ("kb/s", 1e3)):
        # From the figure that is shown: "1000 Gb/s" would be a unit too small.
        if float(f"{bits_per_s:.4g}") >= factor:
            return f"{float(f'{bits_per_s / factor:.4g}'):g} {unit}"
    return f"{bits_per_s:.0f} b/s"


def format_duration(duration_s: float) -> str:
    """Give a duration with four significant digits and a fitting unit: "12.35 ms"."""
    for unit, factor in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(duration_s) >= factor:
            return f"{duration_s / factor:.4g} {unit}"
    return f"{duration_s / 1e-9:.4g} ns" if duration_s else "0 s"


def _split(text: object, wanted: str) -> tuple[float, str]:
    match = _QUANTITY.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise InputError(f"{text!r}: expected {wanted}, with its unit")
    number = float(match[1])
    if number > _LARGEST:
        raise InputError(f"{text!r}: is too large")
    return number, match[2]


def _positive(quantity: float, text: str) -> float:
    if quantity <= 0:
        raise InputError(f"{text!r}: must be above 0")
    return quantity


def _multiple(prefix: str, text: str, wanted: str) -> float:
    if prefix in _DECIMAL:
        return _DECIMAL[prefix]
    if prefix in _BINARY:
        return _BINARY[prefix]
    raise InputError(f"{text!r}: expected {wanted}; {prefix!r} is no multiple known here")
