"""Files that are not what they say: mutants of valid ones, most of them with a valid checksum.

A file is a line with its kind, the SHA-256 of the rest, and a safetensors container whose metadata
hold JSON. A mutant is a function of a random generator and of valid files, so that its number and
the seed bring it back.
"""

import hashlib
import json
import pickle
import random
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

DIGEST_LENGTH = 64
NASTY_VALUES = [
    None, True, False, -1, 0, 1, 2**31, 2**63, -(2**63), 10**30, 10**400, 1e308, -1e308, 5e-324,
    float("nan"), float("inf"), "", "RBFKernel", "os.system", "__import__('os').system('id')",
    "../../etc/passwd", "/dev/zero", "\0", "é" * 1000, "x" * 100_000, [], {}, [[]], [None],
    {"custom": "os"}, {"type": "os.system", "settings": {}, "parts": {}}, list(range(1000)),
]  # fmt: skip
NASTY_FLOATS = [
    float("nan"), float("inf"), -float("inf"), 0.0, -0.0, -1.0, 1e300, -1e300, 1.7e308, 1e-300,
    5e-324, 1e30, 1e-30, 1e6,
]  # fmt: skip
NASTY_SIZES = [0, 1, 2, 7, -1, 2**16, 10**12, 2**31, 2**40, 2**62, 2**63]
DTYPES = ["F64", "F32", "F16", "BF16", "I64", "I32", "U8", "BOOL", "F8_E4M3", "F99", "", None]
SIZES = {"F64": 8, "F32": 4, "I64": 8, "U8": 1, "BOOL": 1, "I32": 4, "F16": 2, "BF16": 2}


@dataclass
class Parts:
    """A file taken apart; `header` has the tensors' entries, `meta` the JSON of orthogp."""

    magic: bytes
    header: dict[str, Any]
    meta: Any
    data: bytearray

    @staticmethod
    def of(content: bytes) -> "Parts":
        end = content.index(b"\n") + 1
        payload = content[end + DIGEST_LENGTH + 1 :]
        (length,) = struct.unpack("<Q", payload[:8])
        header = json.loads(payload[8 : 8 + length])
        meta = json.loads(header.pop("__metadata__")["orthogp"])
        return Parts(content[:end], header, meta, bytearray(payload[8 + length :]))

    def joined(self) -> bytes:
        described = {"__metadata__": {"orthogp": json.dumps(self.meta)}} | self.header
        text = json.dumps(described).encode()
        return signed(self.magic, struct.pack("<Q", len(text)) + text + bytes(self.data))


def signed(magic: bytes, payload: bytes) -> bytes:
    """The payload with a checksum that is right."""
    return magic + hashlib.sha256(payload).hexdigest().encode() + b"\n" + payload


def mutant(rng: random.Random, own: bytes, others: Sequence[bytes]) -> bytes:
    """One file made of `own`, perhaps with parts of `others`; seven of ten have a valid checksum
    and a valid container."""
    draw = rng.random()
    if draw < 0.1:
        return rng.choice(RAW)(rng, own, rng.choice(others))
    if draw < 0.3:
        magic = own[: own.index(b"\n") + 1]
        payload = own[len(magic) + DIGEST_LENGTH + 1 :]
        return signed(magic, rng.choice(RAW)(rng, payload, rng.choice(others)))
    parts = Parts.of(own)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        rng.choice(EDITS)(rng, parts, Parts.of(rng.choice(others)))
    return parts.joined()


def flip(rng: random.Random, content: bytes, other: bytes) -> bytes:
    changed = bytearray(content)
    for _ in range(rng.choice([1, 1, 4, 64])):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def truncate(rng: random.Random, content: bytes, other: bytes) -> bytes:
    return content[: rng.randrange(len(content))]


def lengthen(rng: random.Random, content: bytes, other: bytes) -> bytes:
    return content + rng.randbytes(rng.choice([1, 8, 4096]))


def splice(rng: random.Random, content: bytes, other: bytes) -> bytes:
    return content[: rng.randrange(len(content))] + other[rng.randrange(len(other)) :]


def lie_about_the_header(rng: random.Random, content: bytes, other: bytes) -> bytes:
    """Where the payload begins, the length of its header; elsewhere any eight bytes."""
    length = rng.choice([0, 1, 2**20, 2**24, 2**32, 2**63, 2**64 - 1, rng.randrange(4096)])
    return struct.pack("<Q", length) + content[8:]


def replace_by_pickle(rng: random.Random, content: bytes, other: bytes) -> bytes:
    harm = pickle.dumps(Harm(), protocol=rng.choice([0, 2, 5]))
    return rng.choice([harm, harm + content, content[: rng.randrange(200)] + harm])


class Harm:
    """What a pickle does if anyone loads it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return eval, ("__import__('os').system('true')",)


def places(value: Any) -> list[tuple]:
    """Every path into a JSON value but the empty one, and none longer than a hundred keys."""
    found: list[tuple] = []
    waiting: list[tuple[tuple, Any]] = [((), value)]
    while waiting:
        at, here = waiting.pop()
        pairs = here.items() if isinstance(here, dict) else enumerate(here)
        for key, below in pairs:
            found.append((*at, key))
            if isinstance(below, dict | list) and len(at) < 100:
                waiting.append(((*at, key), below))
    return found


def alter_json(rng: random.Random, parts: Parts, other: Parts) -> None:
    """One value of the JSON is another: a nasty one, one from elsewhere, or a number near it."""
    if not (found := places(parts.meta)):
        return
    *path, key = rng.choice(found)
    holder = _at(parts.meta, path)
    draw = rng.random()
    if draw < 0.15:
        del holder[key]
    elif draw < 0.3 and (elsewhere := places(other.meta)):
        holder[key] = _copy(_at(other.meta, rng.choice(elsewhere)))
    elif draw < 0.4:
        holder[key] = _copy(_at(parts.meta, rng.choice(found)))
    elif draw < 0.5 and type(holder[key]) in (int, float):
        holder[key] = holder[key] * rng.choice([-1, 2, 0, 1e30]) + rng.choice([0, 1, 1e-300])
    else:
        holder[key] = _copy(rng.choice(NASTY_VALUES))


def nest_json(rng: random.Random, parts: Parts, other: Parts) -> None:
    if not (found := places(parts.meta)):
        return
    *path, key = rng.choice(found)
    depth, wrap = rng.choice([3, 100, 400]), rng.choice([lambda v: [v], lambda v: {"type": v}])
    holder = _at(parts.meta, path)
    for _ in range(depth):
        holder[key] = wrap(holder[key])


def alter_entry(rng: random.Random, parts: Parts, other: Parts) -> None:
    """What the container says of a tensor."""
    name = rng.choice(list(parts.header))
    entry = parts.header[name]
    draw = rng.random()
    if draw < 0.3:
        entry["dtype"] = rng.choice(DTYPES)
    elif draw < 0.6:
        entry["shape"] = [rng.choice(NASTY_SIZES) for _ in range(rng.choice([0, 1, 2, 3, 40]))]
    elif draw < 0.8:
        entry["data_offsets"] = [rng.choice(NASTY_SIZES), rng.choice(NASTY_SIZES)]
    else:
        entry[rng.choice(["dtype", "shape", "data_offsets"])] = rng.choice(NASTY_VALUES)


def reshape_tensor(rng: random.Random, parts: Parts, other: Parts) -> None:
    """Another shape for the same bytes, or for none at all: the container is whole."""
    name = rng.choice(list(parts.header))
    entry = parts.header[name]
    count = 1
    for size in entry["shape"] if isinstance(entry["shape"], list) else []:
        count *= size if isinstance(size, int) else 1
    shapes = [[count], [1, count], [count, 1], [1] * 60 + [count], [0, 2**40], [2**62, 0]]
    entry["shape"] = rng.choice(shapes)
    if 0 in entry["shape"] and count:
        remove_bytes(parts, name)


def rename_tensor(rng: random.Random, parts: Parts, other: Parts) -> None:
    name, target = rng.choice(list(parts.header)), rng.choice(list(other.header))
    entry = parts.header.pop(name)
    parts.header[rng.choice([target, "os.system", "", "basis.", f"{name}.x", "../" + name])] = entry


def swap_tensors(rng: random.Random, parts: Parts, other: Parts) -> None:
    first, second = rng.choice(list(parts.header)), rng.choice(list(parts.header))
    header = parts.header
    header[first], header[second] = header[second], header[first]


def drop_tensor(rng: random.Random, parts: Parts, other: Parts) -> None:
    name = rng.choice(list(parts.header))
    remove_bytes(parts, name)
    del parts.header[name]


def remove_bytes(parts: Parts, name: str) -> None:
    """Takes the bytes of a tensor out and moves the tensors behind it up."""
    offsets = parts.header[name]["data_offsets"]
    if not _is_range(offsets):
        return
    begin, end = offsets
    del parts.data[begin:end]
    for entry in parts.header.values():
        if _is_range(entry["data_offsets"]) and entry["data_offsets"][0] >= end:
            entry["data_offsets"] = [at - (end - begin) for at in entry["data_offsets"]]
    parts.header[name]["data_offsets"] = [begin, begin]


def alter_numbers(rng: random.Random, parts: Parts, other: Parts) -> None:
    """Some numbers of a tensor, or all of them, are others."""
    entry = parts.header[rng.choice(list(parts.header))]
    size = SIZES.get(str(entry["dtype"]), 0)
    if not (size and _is_range(entry["data_offsets"])):
        return
    begin, end = entry["data_offsets"]
    spots = range(begin, min(end, len(parts.data)) - size + 1, size)
    if not spots:
        return
    chosen = spots if rng.random() < 0.3 else [rng.choice(spots) for _ in range(rng.choice([1, 9]))]
    code = {"F64": "<d", "F32": "<f"}.get(str(entry["dtype"]))
    value = rng.choice(NASTY_FLOATS)
    factor = rng.choice([None, -1.0, 1e3, 1e-3, 1e100])
    for at in chosen:
        if code is None:
            parts.data[at : at + size] = rng.randbytes(size)
            continue
        (old,) = struct.unpack(code, parts.data[at : at + size])
        new = value if factor is None else old * factor
        parts.data[at : at + size] = _packed(code, new)


def transplant(rng: random.Random, parts: Parts, other: Parts) -> None:
    """A whole part of the other file's JSON in the place of the own."""
    if isinstance(parts.meta, dict) and isinstance(other.meta, dict) and other.meta:
        key = rng.choice(list(other.meta))
        parts.meta[key] = other.meta[key]


def _copy(value: Any) -> Any:
    return json.loads(json.dumps(value))


def _packed(code: str, value: float) -> bytes:
    try:
        return struct.pack(code, value)
    except OverflowError:
        return struct.pack(code, float("inf"))


def _at(value: Any, path: Sequence[Any]) -> Any:
    for key in path:
        value = value[key]
    return value


def _is_range(offsets: Any) -> bool:
    return (
        isinstance(offsets, list)
        and len(offsets) == 2
        and all(type(at) is int for at in offsets)
        and 0 <= offsets[0] <= offsets[1]
    )


RAW: list[Callable[[random.Random, bytes, bytes], bytes]] = [
    flip, flip, truncate, lengthen, splice, lie_about_the_header, replace_by_pickle,
]  # fmt: skip
EDITS: list[Callable[[random.Random, Parts, Parts], None]] = [
    alter_json, alter_json, alter_json, alter_json, nest_json, alter_entry, reshape_tensor,
    rename_tensor, swap_tensors, drop_tensor, alter_numbers, alter_numbers, alter_numbers,
    transplant,
]  # fmt: skip
