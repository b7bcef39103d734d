"""Pickles looked at as data: no name is looked up, nothing is called, nothing is hashed.

The reader knows the operations that torch writes (`.metadata` of torch.distributed.checkpoint, `data.pkl` within a
`.pt`). What a pickle would make becomes a plain list that begins with its kind: `[RECORD, (module, name), arguments,
state]` for what would be made by calling something, `[TABLE, key, value, key, value, ...]` for a dictionary, `[LIST,
...]` for a list or a set, `[OUTSIDE, id]` for a tensor's storage. Of a checkpoint of 10,000 files it reads millions of
operations, hence one long loop, and the sequences that torch repeats in one go.

Source of the operations: Python's Lib/pickletools.py. It imports the standard library only: it runs in the process
that reads a file system.
"""

# ruff: noqa: PLR2004 - the operations stand as the numbers that they are, each with its name beside it

from collections.abc import Generator
from struct import error, unpack_from
from typing import Any

RECORD, TABLE, LIST, OUTSIDE = "record", "table", "list", "outside"
TURN = 50_000
"""Operations after which the reader lets others have a turn."""
MOST_NUMBER = 256
"""Bytes of the longest whole number."""

_MADE = b")\x81\x94}\x94("
"""Make something without arguments, remember it, and begin its state."""
_CALLED = b"\x85\x94R\x94"
"""Call something with one argument, and remember both."""
_TEXTS = {0x58: ("<I", 4), 0x8C: ("<B", 1), 0x8D: ("<Q", 8)}
_BYTES = {0x42: ("<I", 4), 0x43: ("<B", 1), 0x8E: ("<Q", 8)}
_LONGS = {0x8A: ("<B", 1), 0x8B: ("<i", 4)}
_GETS = {0x68: ("<B", 1), 0x6A: ("<I", 4)}
_PUTS = {0x71: ("<B", 1), 0x72: ("<I", 4)}
_NUMBERS = {0x4B: ("<B", 1), 0x4D: ("<H", 2), 0x4A: ("<i", 4), 0x47: (">d", 8)}
_CONSTANTS = {0x4E: None, 0x88: True, 0x89: False}


class NotReadableError(ValueError):
    """Cut short, damaged, or of operations that torch does not use; the message says which, in a few words."""


def get(made: Any, key: str) -> Any:
    """An attribute of a record or an entry of a table, the last one of that name; None where there is none."""
    if isinstance(made, list) and made and made[0] is RECORD:
        made = made[3]
        if isinstance(made, tuple):  # (its dictionary, its slots)
            made = next((each for each in made if is_a(each, TABLE)), None)
    if not is_a(made, TABLE):
        return None
    for at in range(len(made) - 2, 0, -2):
        if isinstance(made[at], str) and made[at] == key:
            return made[at + 1]
    return None


def is_a(made: Any, kind: str) -> bool:
    """Whether it is of that kind."""
    return isinstance(made, list) and bool(made) and made[0] is kind


def read(data: bytes) -> Any:
    """What a pickle holds.

    Raises:
        NotReadableError: see there.
    """
    reading = steps(data)
    while True:
        try:
            next(reading)
        except StopIteration as end:
            return end.value


def steps(data: bytes) -> Generator[None, None, Any]:
    """As `read`, in turns: it yields from time to time."""
    try:
        return (yield from _run(data))
    except NotReadableError:
        raise
    except (IndexError, KeyError, ValueError, TypeError, AttributeError, error) as reason:
        raise NotReadableError(f"cut short or damaged ({type(reason).__name__})") from reason


def _run(data: bytes) -> Generator[None, None, Any]:  # noqa: C901, PLR0912, PLR0915 - see the module's first lines
    stack: list[Any] = []
    marks: list[int] = []
    memo: list[Any] = []
    push, pop, remember = stack.append, stack.pop, memo.append
    at = 0
    while True:
        yield
        for _ in range(TURN):
            code = data[at]
            at += 1
            if code == 0x94:  # MEMOIZE
                remember(stack[-1])
            elif code == 0x68:  # BINGET
                push(memo[data[at]])
                at += 1
            elif code == 0x29:  # EMPTY_TUPLE
                if data[at - 1 : at + 5] == _MADE:
                    made = [RECORD, pop(), (), None]
                    state: Any = [TABLE]
                    remember(made)
                    remember(state)
                    push(made)
                    push(state)
                    marks.append(len(stack))
                    at += 5
                else:
                    push(())
            elif code == 0x75:  # SETITEMS
                begin = marks.pop()
                items = stack[begin:]
                del stack[begin:]
                if len(items) % 2:
                    raise NotReadableError("damaged: a key without a value")
                made = stack[-1]
                (made if made and made[0] is TABLE else _table(made)).extend(items)
            elif code == 0x62:  # BUILD
                state = pop()
                made = stack[-1]
                if made and made[0] is RECORD:
                    made[3] = state
            elif code == 0x85:  # TUPLE1
                one = (pop(),)
                if data[at - 1 : at + 3] == _CALLED:
                    remember(one)
                    made = [RECORD, pop(), one, None]
                    remember(made)
                    push(made)
                    at += 3
                else:
                    push(one)
            elif code == 0x4B:  # BININT1
                push(data[at])
                at += 1
            elif code == 0x86:  # TUPLE2
                second, first = pop(), pop()
                push((first, second))
            elif code in _NUMBERS:
                shape, size = _NUMBERS[code]
                push(unpack_from(shape, data, at)[0])
                at += size
            elif code in _TEXTS:
                shape, size = _TEXTS[code]
                begin = at + size
                at = begin + unpack_from(shape, data, at)[0]
                push(str(_cut(data, begin, at), "utf-8", "surrogatepass"))
            elif code == 0x28:  # MARK
                marks.append(len(stack))
            elif code == 0x7D:  # EMPTY_DICT
                push([TABLE])
            elif code in _GETS:
                shape, size = _GETS[code]
                push(memo[unpack_from(shape, data, at)[0]])
                at += size
            elif code in {0x81, 0x52}:  # NEWOBJ, REDUCE
                args = pop()
                push([RECORD, pop(), args, None])
            elif code == 0x2E:  # STOP
                return pop()
            elif code in _PUTS:
                shape, size = _PUTS[code]
                _put(memo, unpack_from(shape, data, at)[0], stack[-1])
                at += size
            elif code in _CONSTANTS:
                push(_CONSTANTS[code])
            elif code == 0x93:  # STACK_GLOBAL
                name, module = pop(), pop()
                push((str(module), str(name)))
            elif code == 0x87:  # TUPLE3
                third, second, first = pop(), pop(), pop()
                push((first, second, third))
            elif code in {0x5D, 0x8F}:  # EMPTY_LIST, EMPTY_SET
                push([LIST])
            elif code in {0x65, 0x90, 0x74, 0x6C, 0x64, 0x91}:  # APPENDS, ADDITEMS, TUPLE, LIST, DICT, FROZENSET
                begin = marks.pop()
                items = stack[begin:]
                del stack[begin:]
                _collect(stack, code, items)
            elif code == 0x61:  # APPEND
                value = pop()
                _collect(stack, 0x65, [value])
            elif code == 0x73:  # SETITEM
                value, key = pop(), pop()
                _table(stack[-1]).extend((key, value))
            elif code == 0x51:  # BINPERSID
                push([OUTSIDE, pop()])
            elif code in _LONGS:
                shape, size = _LONGS[code]
                length = unpack_from(shape, data, at)[0]
                if not 0 <= length <= MOST_NUMBER:
                    raise NotReadableError("holds a number that is too long")
                begin = at + size
                at = begin + length
                push(int.from_bytes(_cut(data, begin, at), "little", signed=True))
            elif code in _BYTES:
                shape, size = _BYTES[code]
                begin = at + size
                at = begin + unpack_from(shape, data, at)[0]
                push(_cut(data, begin, at))
            elif code == 0x63:  # GLOBAL
                middle = data.index(b"\n", at)
                end = data.index(b"\n", middle + 1)
                push((data[at:middle].decode(), data[middle + 1 : end].decode()))
                at = end + 1
            elif code == 0x80:  # PROTO
                at += 1
            elif code == 0x95:  # FRAME
                at += 8
            elif code == 0x92:  # NEWOBJ_EX
                pop()
                args = pop()
                push([RECORD, pop(), args, None])
            elif code == 0x30:  # POP
                pop()
            else:
                raise NotReadableError(f"operation {code:#x} is not one that torch writes")


def _cut(data: bytes, begin: int, end: int) -> bytes:
    if end > len(data):
        raise NotReadableError("cut short")
    return data[begin:end]


def _put(memo: list[Any], number: int, value: Any) -> None:
    """Every pickler counts up: a number further on would only claim memory."""
    if number == len(memo):
        memo.append(value)
    else:
        memo[number] = value


def _table(made: Any) -> list[Any]:
    """Where the items of a dictionary go; an OrderedDict is made by a call, and filled afterwards."""
    if is_a(made, RECORD):
        if not is_a(made[3], TABLE):
            made[3] = [TABLE]
        made = made[3]
    if not is_a(made, TABLE):
        raise NotReadableError("damaged: items without a dictionary")
    return made  # type: ignore[no-any-return]


def _collect(stack: list[Any], code: int, items: list[Any]) -> None:
    """The operations that take all since the last mark."""
    if code == 0x74:
        stack.append(tuple(items))
    elif code in {0x6C, 0x91}:
        stack.append([LIST, *items])
    elif code == 0x64:
        stack.append([TABLE, *items])
    elif is_a(stack[-1], LIST):
        stack[-1].extend(items)
    elif not is_a(stack[-1], RECORD):
        raise NotReadableError("damaged: values without a list")
