"""Trace the calls that an append, a local fetch, a cold fetch from a tier and an offload make inside stratalog.

    python scripts/call_paths.py [--calls]

Each call is traced once, after another call of its kind that fills caches; the cold fetch is the first fetch of its
segment. Only Python functions on the caller's thread are traced. ``--calls`` lists the functions in the order of calls.
"""

from __future__ import annotations

import inspect
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Final, NamedTuple

from pictures import TreeBox

from stratalog import Engine, Log, Record, open_engine, open_reader

_RECORDS: Final = [
    Record(value=b"v" * 100, timestamp_ms=1_700_000_000_000)
] * 100  # fixed timestamps: without them, an append also reads the clock
_APPENDS: Final = 60
_SEGMENT_BYTES: Final = 200_000
_CALLER: Final = "caller"
_MOST_BOXES: Final = 9  # largest number of boxes on a page; if there are more, boxes are merged
_MOST_NAMES, _LINE_NAMES = 7, 2  # largest number of modules in a box, and in one line of a box
# not in pictures, because all rooms call
_EVERYWHERE: Final = frozenset({"config", "env", "errors", "model", "registry", "spi"})


class Call(NamedTuple):
    """One call of a function.

    Attributes:
        caller: the nearest calling module whose room (package) the pictures show; "" for the program.
        module: the module of the called function.
        function: the qualified name of the called function.
    """

    caller: str
    module: str
    function: str


def main(arguments: list[str]) -> int:
    """Print the modules of each path with the number of calls into each, or with ``--calls`` each call; return 0."""
    with tempfile.TemporaryDirectory(prefix="call-paths-") as scratch:
        for name, calls in paths(Path(scratch)).items():
            modules = Counter(call.module for call in calls)
            print(f"{name}: {len(modules)} modules, {len(calls)} calls")
            if "--calls" in arguments:
                for call in calls:
                    print(f"    {call.module}.{call.function}")
            else:
                for module, count in modules.items():
                    print(f"    {count:3} {module}")
    return 0


def paths(scratch: Path) -> dict[str, list[Call]]:
    """Return the calls of each path in order; ``scratch`` is an empty folder."""
    (scratch / "tier").mkdir()
    tier = (scratch / "tier").as_uri()
    with open_engine(scratch / "local") as engine:
        log = _filled(engine, {"segment.bytes": _SEGMENT_BYTES})
        offset = log.segments()[-1].base_offset + 1
        log.fetch(offset, 1).release()
        found = {
            "append": _calls(lambda: log.append(_RECORDS)),
            "local fetch": _calls(lambda: log.fetch(offset, 1).release()),
        }
    with open_engine(scratch / "tiered", tier=tier) as engine:
        config = {"segment.bytes": _SEGMENT_BYTES, "remote.storage.enable": True, "local.retention.bytes": 1}
        log = _filled(engine, config)
        engine.offload()
        offloaded = len(log.segments())
        while len(log.segments()) == offloaded:  # until one more segment is closed
            log.append(_RECORDS)
        offload = _calls(engine.offload)
    with open_reader(tier) as reader:
        cold = reader.log("paths", 0)
        middle = cold.segments()[1].base_offset + 1
        cold.fetch(0, 1).release()
        found |= {"cold fetch": _calls(lambda: cold.fetch(middle, 1).release()), "offload": offload}
    return found


def picture(calls: Sequence[Call]) -> tuple[list[TreeBox], list[str]]:
    """Return boxes for the rooms (packages) that ``calls`` enter, and a sentence about the first call into each room.

    An arrow is the first call into a room; calls of properties and constructors are used only if there is no other
    call. The boxes are a tree, so no arrows cross. If there are too many boxes for a page, the rooms inside ``log``,
    ``tier`` and the other large rooms share the box of the large room.
    """
    shown = [call for call in calls if _room(call.module)[0] not in _EVERYWHERE and _can_be_looked_up(call.function)]
    merges = len({_room(call.module)[0] for call in shown}) > _MOST_BOXES
    rooms = dict[str, list[str]]()
    first = dict[str, Call]()
    for call in shown:
        room, module = _box(call.module, merges=merges)
        caller = _box(call.caller, merges=merges)[0] if call.caller else _CALLER
        if caller != room and (room not in first or (_is_minor(first[room]) and not _is_minor(call))):
            first.setdefault(room, call)
            if caller in rooms or caller == _CALLER:  # otherwise the arrows would not be a tree
                first[room] = call
        names = rooms.setdefault(room, [])
        if module not in names:
            names.append(module)
    numbers = {_CALLER: 0}
    boxes, steps = [TreeBox(None, "", (_CALLER,))], list[str]()
    for order, (room, call) in enumerate(first.items(), 1):
        caller = _box(call.caller, merges=merges)[0] if call.caller else _CALLER
        numbers[room] = len(boxes)
        boxes.append(TreeBox(numbers[caller], f"{order} {_label(call.function)}", (room, *_lines(rooms[room]))))
        steps.append(f"{order}. `{_label(call.function)}` in `{_room(call.module)[1]}`: {_sentence(call)}")
    return boxes, steps


def _can_be_looked_up(function: str) -> bool:
    """Return True unless the function is a local function, for whose name a reader cannot search."""
    return "<" not in function


def _is_minor(call: Call) -> bool:
    """Return True for a property or a constructor."""
    return call.function.endswith(".__init__") or isinstance(_called(call), property)


def _called(call: Call) -> object:
    """Return the called function, property or class; None if it cannot be found by its name."""
    found: object = sys.modules.get(call.module)
    for name in call.function.removesuffix(".__init__").split("."):
        found = inspect.getattr_static(found, name, None)
    return found


def _sentence(call: Call) -> str:
    """Return the first sentence of the documentation of the called function."""
    found = _called(call)
    text = inspect.getdoc(found.__func__ if isinstance(found, classmethod | staticmethod) else found) or ""
    sentence = " ".join(text.partition("\n\n")[0].split()).partition(". ")[0].replace("``", "`")
    return f"{sentence.rstrip('.')}." if sentence and found is not None else "no description."


def _lines(modules: Sequence[str]) -> list[str]:
    """Return lines of text with the first modules of a box, and the number of its other modules."""
    others = len(modules) - _MOST_NAMES
    names = [*modules[:_MOST_NAMES], *([f"{others} more"] if others > 0 else [])]
    return [", ".join(names[at : at + _LINE_NAMES]) for at in range(0, len(names), _LINE_NAMES)]


def _box(module: str, *, merges: bool) -> tuple[str, str]:
    """Return the box of ``module``, and the module's name in it. With ``merges``, a large room is one box."""
    room, name = _room(module)
    return (room.partition("/")[0], name) if merges else (room, name)


def _label(function: str) -> str:
    """Return the name of a function, or the class if it is a constructor."""
    *owners, name = function.split(".")
    return owners[-1] if name == "__init__" else name


def _room(module: str) -> tuple[str, str]:
    """Return the room (package of the core) or the plugin of ``module``, and the module's name in it."""
    package, *folders, name = module.split(".")
    return (package if package != "stratalog" else "/".join(folders) or name), name


def _filled(engine: Engine, config: Mapping[str, object]) -> Log:
    """Create a topic whose log has several segments, and return the log."""
    engine.create_topic("paths", config=config)
    log = engine.log("paths", 0)
    for _ in range(_APPENDS):
        log.append(_RECORDS)
    return log


def _calls(work: Callable[[], object]) -> list[Call]:
    """Return the calls of stratalog's functions that ``work`` makes on this thread."""
    found = list[Call]()

    def on_event(frame: FrameType, event: str, argument: object) -> None:
        del argument
        if event == "call" and (module := _module(frame)):
            outer = frame.f_back
            while outer is not None and (not _module(outer) or _room(_module(outer))[0] in _EVERYWHERE):
                outer = outer.f_back
            found.append(Call("" if outer is None else _module(outer), module, frame.f_code.co_qualname))

    sys.setprofile(on_event)
    try:
        work()
    finally:
        sys.setprofile(None)
    return found


def _module(frame: FrameType) -> str:
    """Return the module of a frame if its name begins with ``stratalog``, else ""."""
    name = frame.f_globals.get("__name__", "")
    return name if isinstance(name, str) and name.startswith("stratalog") else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
