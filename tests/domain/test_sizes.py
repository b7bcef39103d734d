"""Sizes as people write them: with their unit, or not at all."""

import pytest

from relight.domain.human import size


@pytest.mark.parametrize(
    ("text", "number"),
    [("500MB", 5 * 10**8), ("20 GB", 2 * 10**10), ("1.5gb", 15 * 10**8), ("2TiB", 2 * 2**40), ("512B", 512)],
)
def test_a_size_is_read_with_its_unit(text, number):
    """Decimal, or binary with an i."""
    assert size(text) == number


@pytest.mark.parametrize("text", ["20", 20, "20G", "-1GB", "1iB", "", None, True, "1e9B", "99999999999GB"])
def test_anything_else_is_refused_with_what_is_accepted(text):
    """Nothing is guessed."""
    with pytest.raises(ValueError, match="must be a size with its unit, like 500MB, 20GB or 2TiB"):
        size(text)
