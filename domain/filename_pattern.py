r"""Slurm's filename pattern: what `%j`, `%x`, `%t` and the like stand for, put in as slurmstepd does it.

Source: the manual pages of sbatch and srun, "filename pattern", and the files that real jobs made. `%5j` pads with
zeros, to at most ten digits. Outside of an array `%a` is 4294967294.
"""

import re
from collections.abc import Mapping

NO_TASK = 4294967294
_PLACEHOLDER = re.compile(r"%(\d*)([AaJNbjnstux%])")


def placeholders(pattern: str) -> frozenset[str]:
    """The letters of those that the pattern holds."""
    return frozenset(found[2] for found in _PLACEHOLDER.finditer(pattern))


def filled(pattern: str, values: Mapping[str, str]) -> str:
    """The pattern with the values of its placeholders, by letter; those without a value stay as they are."""

    def value(found: re.Match[str]) -> str:
        text = values.get(found[2])
        if text is None:
            return found[0]
        return text.rjust(min(int(found[1] or 0), 10), "0") if text.isdecimal() else text

    return _PLACEHOLDER.sub(value, pattern)
