"""Quantities with units, there and back."""

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spindle_sim.errors import InputError
from spindle_sim.units import (
    counted,
    format_bandwidth,
    format_bit_rate,
    format_bytes,
    format_duration,
    parse_bandwidth,
    parse_bytes,
    parse_duration,
    parse_flops,
)

NUMBERS = st.floats(min_value=1e-6, max_value=1e9, allow_subnormal=False)
PARSERS = [parse_bytes, parse_bandwidth, parse_flops, parse_duration]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("80GiB", 80 * 2**30), ("2GB", 2e9), ("1 kB", 1e3), ("1KiB", 1024), ("512B", 512)],
)
def test_binary_and_decimal_sizes_are_told_apart(text: str, expected: float) -> None:
    assert parse_bytes(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("400Gb/s", 50e9), ("400Gbps", 50e9), ("50GB/s", 50e9), ("8Mb/s", 1e6), ("2TB/s", 2e12)],
)
def test_bits_and_bytes_are_told_apart(text: str, expected: float) -> None:
    assert parse_bandwidth(text) == expected


@pytest.mark.parametrize("text", ["312TFLOPS", "312TFLOP/s", "0.312 PFLOP/s", "312e12FLOP/s"])
def test_compute_rates_have_three_spellings(text: str) -> None:
    assert parse_flops(text) == 312e12


@pytest.mark.parametrize(
    ("text", "expected"),
    [("10us", 1e-5), ("10µs", 1e-5), ("1.5ms", 1.5e-3), ("2s", 2), ("3min", 180), ("0us", 0)],
)
def test_durations_are_exact(text: str, expected: float) -> None:
    assert parse_duration(text) == expected


@pytest.mark.parametrize("parse", PARSERS)
@pytest.mark.parametrize("text", ["", "400", "GB", "4 parsec", "-1GB", "1e999GB", "nan s", "1GBB"])
def test_what_is_no_quantity_is_refused_with_what_was_found(
    parse: Callable[[str], float], text: str
) -> None:
    with pytest.raises(InputError) as caught:
        parse(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("parse", "text"), [(parse_bytes, "0B"), (parse_bandwidth, "0Gb/s"), (parse_flops, "0FLOP/s")]
)
def test_nothing_at_all_is_no_size_and_no_rate(parse: Callable[[str], float], text: str) -> None:
    with pytest.raises(InputError, match="above 0"):
        parse(text)


def test_a_size_is_no_bandwidth_and_a_bandwidth_no_size() -> None:
    with pytest.raises(InputError, match="expected a bandwidth"):
        parse_bandwidth("80GiB")
    with pytest.raises(InputError, match="expected a size"):
        parse_bytes("400Gb/s")


@given(NUMBERS, st.sampled_from(["", "k", "M", "G", "T", "P"]))
def test_a_byte_is_eight_bits_whatever_the_multiple(number: float, prefix: str) -> None:
    in_bytes = parse_bandwidth(f"{number!r}{prefix}B/s")
    assert parse_bandwidth(f"{number!r}{prefix}b/s") * 8 == pytest.approx(in_bytes, rel=1e-15)


@given(st.floats(min_value=1, max_value=1e15))
def test_a_formatted_size_reads_back_within_its_digits(size_bytes: float) -> None:
    assert parse_bytes(format_bytes(size_bytes)) == pytest.approx(size_bytes, rel=0.006, abs=0.51)


@given(st.floats(min_value=1, max_value=1e15))
def test_a_formatted_bandwidth_reads_back_within_its_digits(bandwidth: float) -> None:
    assert parse_bandwidth(format_bandwidth(bandwidth)) == pytest.approx(
        bandwidth, rel=0.051, abs=0.51
    )


@given(st.floats(min_value=1, max_value=1e15))
def test_a_formatted_bit_rate_reads_back_to_four_digits(bandwidth: float) -> None:
    assert parse_bandwidth(format_bit_rate(bandwidth)) == pytest.approx(
        bandwidth, rel=5.1e-4, abs=0.07
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("400Gb/s", "400 Gb/s"),
        ("50GB/s", "400 Gb/s"),
        ("1.6Tb/s", "1.6 Tb/s"),
        ("1000Gb/s", "1 Tb/s"),
        ("999.99Gb/s", "1 Tb/s"),
        ("25Gb/s", "25 Gb/s"),
        ("56.25Gb/s", "56.25 Gb/s"),
        ("100Mb/s", "100 Mb/s"),
        ("800b/s", "800 b/s"),
    ],
)
def test_a_network_card_is_shown_in_bits_as_it_is_sold(text: str, expected: str) -> None:
    assert format_bit_rate(parse_bandwidth(text)) == expected


@given(st.floats(min_value=1e-9, max_value=1e6))
def test_a_formatted_duration_reads_back_to_four_digits(duration_s: float) -> None:
    assert parse_duration(format_duration(duration_s)) == pytest.approx(duration_s, rel=5e-4)


def test_one_of_a_kind_is_singular() -> None:
    assert [counted(number, "task") for number in (0, 1, 2)] == ["0 tasks", "1 task", "2 tasks"]
    assert counted(1024, "slice") == "1,024 slices"


def test_formats_are_what_a_person_reads() -> None:
    assert format_bytes(1.5 * 2**30) == "1.50 GiB"
    assert format_bytes(12) == "12 B"
    assert format_bandwidth(50e9) == "50.0 GB/s"
    assert format_duration(0.012_35) == "12.35 ms"
    assert format_duration(0) == "0 s"
    assert format_duration(-2.5) == "-2.5 s"
    assert math.isclose(parse_duration(format_duration(7e-10)), 7e-10)
