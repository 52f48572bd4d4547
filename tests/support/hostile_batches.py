"""Hostile bytes for authors of record formats: valid sets of entries with one wrong field, or with damage.

``lie`` knows the structure. It changes one field of an entry, of a record or of a message inside a wrapper, corrects
the CRC, and can compress the result. A mutant therefore passes all checks except those of the changed field.
``scramble`` mostly ignores the structure: it flips, cuts, repeats and joins bytes. ``shrink`` reduces a failing input.

Each function gets a ``Random`` from its caller. Its seed determines the mutants.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Final, NamedTuple

from entry_parts import (
    BATCH_ATTRIBUTES_POSITION,
    MAGIC_POSITION,
    OVERHEAD_BYTES,
    SIZE_POSITION,
    Part,
    entries_of,
    joined,
    number_of,
    parts_of_entry,
    parts_of_records,
    seal,
    take_varint,
    varint,
)
from stratalog.spi.codecs import Codec

_CONTENTS: Final = frozenset({"records", "key", "value", "header key", "header value", "rest"})
_INTERESTING: Final = bytes((0, 1, 2, 7, 127, 128, 129, 254, 255))


class Mutant(NamedTuple):
    """Changed bytes, and a description of the change."""

    data: bytes
    story: str


# --- lies --------------------------------------------------------------------------------------------------------


def lie(sets: Sequence[bytes], codecs: Sequence[Codec], chance: Random) -> Mutant:
    """Return one of the sets with one wrong field; its CRC is correct unless the CRC is the wrong field.

    Sizes are mostly corrected too.

    Args:
        sets: valid uncompressed sets of one magic. Larger sets take longer.
        codecs: codecs that this magic supports. With a codec, the wrong field is in the header of the compressed batch,
            in the wrapper, or in the records before their compression.
        chance: source of all random decisions.
    """
    entries = entries_of(chance.choice(sets))
    codec = chance.choice((None, *codecs))
    if entries[0][MAGIC_POSITION] < 2 and codec is not None:
        return _lie_in_wrapper(entries, codec, chance)
    index = chance.randrange(len(entries))
    if entries[index][MAGIC_POSITION] == 2:
        entries[index], story = _lie_in_batch(entries[index], codec, chance)
    else:
        entries[index], story = _lie_in_entry(entries[index], chance)
    return Mutant(b"".join(entries), f"entry {index}: {story}")


def _lie_in_batch(batch: bytes, codec: Codec | None, chance: Random) -> Mutant:
    *head, (_, section) = parts_of_entry(batch)
    story = ""
    if chance.random() < 0.6:
        section, story = _lie_in_records(parts_of_records(section), chance)
    entry = bytearray(joined(head))
    if codec is not None:
        section = codec.compress(section, level=None, magic=2)
        entry[BATCH_ATTRIBUTES_POSITION] |= codec.id
    framed = _framed(entry + section)
    lied = Mutant(bytes(framed), story) if story else _lie_in_entry(bytes(framed), chance)
    return Mutant(lied.data, f"{lied.story}, codec {codec.id if codec else 0}")


def _lie_in_wrapper(entries: list[bytes], codec: Codec, chance: Random) -> Mutant:
    magic, offset, story = entries[0][MAGIC_POSITION], entries[-1][:8], ""
    if magic:
        entries = [index.to_bytes(8, "big") + entry[8:] for index, entry in enumerate(entries)]
    draw = chance.random()
    if draw < 0.5:
        index = chance.randrange(len(entries))
        entries[index], story = _lie_in_entry(entries[index], chance)
    elif draw < 0.6:
        entries, story = _shuffled(entries, chance)
    contents = b"".join(entries)
    if 0.6 <= draw < 0.65:
        contents, story = contents[: chance.randrange(len(contents))], "the last message is cut"
    compressed = codec.compress(contents, level=None, magic=magic)
    wrapper = bytearray(offset + bytes(8) + bytes((magic, codec.id)) + bytes(8 if magic else 0))
    wrapper += b"\xff\xff\xff\xff" + len(compressed).to_bytes(4, "big") + compressed
    framed = bytes(_framed(wrapper))
    lied = Mutant(framed, f"in the wrapper, {story}") if story else _lie_in_entry(framed, chance)
    return Mutant(lied.data, f"{lied.story}, codec {codec.id}")


def _lie_in_entry(entry: bytes, chance: Random) -> Mutant:
    parts = parts_of_entry(entry)
    index = chance.randrange(len(parts))
    name, raw = parts[index]
    if name in _CONTENTS:
        parts[index] = (name, _mangled(raw, chance))
    else:
        number = _lied(number_of(raw), 8 * len(raw), len(entry), chance)
        parts[index] = (name, number.to_bytes(len(raw), "big", signed=True))
    changed = bytearray(joined(parts))
    if len(changed) != len(entry) and chance.random() < 0.7:
        _framed(changed)
    if name != "CRC":
        seal(changed)
    return Mutant(bytes(changed), f"{name} was {raw[:16].hex()}, is {parts[index][1][:16].hex()}")


def _lie_in_records(records: list[list[Part]], chance: Random) -> Mutant:
    if chance.random() < 0.1:
        shuffled, story = _shuffled([joined(record) for record in records], chance)
        return Mutant(b"".join(shuffled), story)
    row = chance.randrange(len(records))
    record = records[row]
    index = chance.randrange(len(record))
    name, raw = record[index]
    if name in _CONTENTS or name == "attributes":
        record[index] = (name, _mangled(raw, chance))
    else:
        bits = 64 if name == "timestamp delta" else 32
        record[index] = (name, _lied_varint(raw, bits, len(joined(record)), chance))
    if index and chance.random() < 0.5:
        record[0] = ("length", varint(len(joined(record[1:]))))
    story = f"record {row}: {name} was {raw[:16].hex()}, is {record[index][1][:16].hex()}"
    return Mutant(b"".join(map(joined, records)), story)


def _lied(true: int, bits: int, room: int, chance: Random) -> int:
    """Return a number of ``bits`` bits near ``true``, at an edge of the range, or random; rarely ``true`` itself."""
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1
    guess = chance.choice(
        (
            true + 1,
            true - 1,
            -true,
            true ^ 1 << chance.randrange(bits),
            0,
            -1,
            1,
            room,
            room + chance.randrange(-8, 9),
            low,
            high,
            high - chance.randrange(64),
            chance.getrandbits(bits),
        )
    )
    return (guess - low) % (1 << bits) + low


def _lied_varint(raw: bytes, bits: int, room: int, chance: Random) -> bytes:
    """Return the varint of a wrong number, an overlong varint of random length, or a varint that is cut off."""
    draw = chance.random()
    if draw < 0.7:
        _, true = take_varint(raw, 0, "", [])
        return varint(_lied(true, bits, room, chance))
    if draw < 0.9:
        longer = bytearray(raw.ljust(chance.randrange(2, 13), b"\0"))
        for place in range(len(longer) - 1):
            longer[place] |= 128
        longer[-1] |= chance.choice((0, 0, 1, 8, 127))
        return bytes(longer)
    return bytes((raw[0] | 128,)) + raw[1:-1]


def _mangled(raw: bytes, chance: Random) -> bytes:
    """Return changed bytes; their size usually differs from the size in their header."""
    position = chance.randrange(len(raw) + 1)
    return chance.choice(
        (
            b"",
            raw[:position],
            raw[position:],
            raw + raw[:position],
            raw[:position] + b"\xff" + raw[position + 1 :],
            raw + b"\0",
        )
    )


def _shuffled(items: list[bytes], chance: Random) -> tuple[list[bytes], str]:
    index = chance.randrange(len(items))
    if chance.random() < 0.5:
        return items[:index] + items[index + 1 :], f"item {index} is left out"
    return [*items, items[index]], f"item {index} is repeated at the end"


def _framed(entry: bytearray) -> bytearray:
    """Set size and CRC to the right values."""
    entry[SIZE_POSITION:OVERHEAD_BYTES] = (len(entry) - OVERHEAD_BYTES).to_bytes(4, "big")
    seal(entry)
    return entry


# --- damage ------------------------------------------------------------------------------------------------------


def scramble(sets: Sequence[bytes], chance: Random) -> Mutant:
    """Return one of the sets, compressed or not, after one to three kinds of damage.

    Half of the results get the right size and CRC again.
    """
    data = bytearray(chance.choice(sets))
    magic, damage_names = data[MAGIC_POSITION], []
    for _ in range(chance.choice((1, 1, 2, 3))):
        damage = chance.choice(_DAMAGE)
        damage(data, sets, chance)
        damage_names.append(damage.__name__.strip("_"))
    if len(data) > 26 and chance.random() < 0.5:
        data[MAGIC_POSITION] = magic
        _framed(data)
        damage_names.append("sealed")
    return Mutant(bytes(data), ", ".join(damage_names))


def _place(data: bytearray, chance: Random) -> int:
    """Return a random position. About one in five positions is in the first 26 bytes, the header of the first entry."""
    return int(chance.random() * (len(data) if chance.random() < 0.8 else min(len(data), 26)))


def _bit_flipped(data: bytearray, sets: Sequence[bytes], chance: Random) -> None:
    del sets
    if data:
        data[_place(data, chance)] ^= 1 << int(chance.random() * 8)


def _byte_set(data: bytearray, sets: Sequence[bytes], chance: Random) -> None:
    del sets
    if data:
        data[_place(data, chance)] = chance.choice(_INTERESTING)


def _byte_drawn(data: bytearray, sets: Sequence[bytes], chance: Random) -> None:
    del sets
    if data:
        data[_place(data, chance)] = int(chance.random() * 256)


def _cut(data: bytearray, sets: Sequence[bytes], chance: Random) -> None:
    del sets
    del data[_place(data, chance) :]


def _removed(data: bytearray, sets: Sequence[bytes], chance: Random) -> None:
    del sets
    position = _place(data, chance)
    del data[position : position + 1 + int(chance.random() * 12)]


def _repeated(data: bytearray, sets: Sequence[bytes], chance: Random) -> None:
    del sets
    position = _place(data, chance)
    data[position:position] = data[position : position + 1 + int(chance.random() * 40)]


def _spliced(data: bytearray, sets: Sequence[bytes], chance: Random) -> None:
    other_set = chance.choice(sets)
    data[_place(data, chance) :] = other_set[int(chance.random() * len(other_set)) :]


def _noise_behind_the_header(data: bytearray, sets: Sequence[bytes], chance: Random) -> None:
    del sets
    start = 61 if len(data) > 61 and data[MAGIC_POSITION] == 2 else 26
    data[start:] = chance.randbytes(int(chance.random() * 64))


_DAMAGE: Final = (
    _bit_flipped,
    _bit_flipped,
    _byte_set,
    _byte_drawn,
    _cut,
    _removed,
    _repeated,
    _spliced,
    _noise_behind_the_header,
)


# --- shrinking ---------------------------------------------------------------------------------------------------


def shrink(data: bytes, fails: Callable[[bytes], bool], tries: int = 500) -> bytes:
    """Return smaller or simpler bytes that still fail, by removing or zeroing parts while ``fails`` returns True.

    Args:
        data: bytes that fail.
        fails: returns True if bytes fail; called about ``tries`` times at most.
        tries: limit on the number of attempts.
    """
    size = len(data) // 2
    while size and tries > 0:
        position = 0
        while position < len(data) and tries > 0:
            head, tail = data[:position], data[position + size :]
            zeroed = head + bytes(len(data) - len(head) - len(tail)) + tail
            for smaller in (head + tail, zeroed):
                tries -= 1
                if smaller != data and fails(smaller):
                    data = smaller
                    break
            else:
                position += size
                continue
            position += size if len(data) == len(zeroed) else 0
        size //= 2
    return data
