"""Plain values from a pickle or JSON that anybody may have written: no code is run, memory and time stay bounded."""

import io
import json
import pickle
from collections.abc import Callable
from typing import Any

_PICKLE = 0x80
"""First byte of a pickle of protocol 2 or later."""
_PLAIN = b"\x80\x95.}])(0N\x88\x89JKM\x8aGX\x8c\x8dqr\x94hjaesu\x85\x86\x87t"
"""The operations that build numbers, texts, lists, tuples and dictionaries. All others, which look names up, call them
or refer outside, are unknown to the reader. Source: Python's Lib/pickletools.py."""
_Python: Any = pickle._Unpickler  # noqa: SLF001
"""The one in Python, on purpose: the one in C reserves memory for whatever index a pickle claims to have reached."""


class NotPlainError(ValueError):
    """Neither plain pickle nor JSON; the message says what is wrong in a few words."""


def plain(data: bytes) -> Any:
    """The value.

    Raises:
        NotPlainError: when it is damaged, no such document, or holds more than plain values.
    """
    try:
        return _Plain(io.BytesIO(data)).load() if data[:1] == bytes([_PICKLE]) else json.loads(data)
    except NotPlainError:
        raise
    except RecursionError:
        raise NotPlainError("it is nested too deeply") from None
    except KeyError:
        raise NotPlainError("it holds more than plain values, or is damaged") from None
    except Exception as error:  # what a reader of pickles raises on other bytes is not limited
        raise NotPlainError(f"neither pickle nor JSON, or cut off ({type(error).__name__})") from error


def _checked(name: str) -> Callable[[Any], None]:
    """Setting items with keys that hash at once: a tuple of tuples of one tuple takes for ever."""
    load = getattr(_Python, name)

    def checked(reader: Any) -> None:
        keys = reader.stack[-2:-1] if name == "load_setitem" else reader.stack[::2]
        if not all(isinstance(key, str | int) for key in keys):
            raise NotPlainError("it has a key that is neither text nor number")
        load(reader)

    return checked


class _Plain(_Python):  # type: ignore[misc]
    """Knows the plain operations only."""

    dispatch = {code: load for code, load in _Python.dispatch.items() if code in _PLAIN} | {
        ord("s"): _checked("load_setitem"),
        ord("u"): _checked("load_setitems"),
    }
