"""A seeded mutator: bytes in, damaged bytes out."""

import random

INTERESTING = [
    b"\0",
    b"\xff",
    b"\xef\xbb\xbf",
    b'"',
    b"\n",
    b"\r",
    b",",
    b";",
    b"\t",
    b"'",
    b"1e308",
    b"-inf",
    b"nan",
    b"1e200",
    b"99999999999999999999",
    b"NA",
    b"\xc3\xa9",
    b"\xed\xa0\x80",
    b"[/s]",
    b"2020-13-45",
    b"1_000",
    b"\x1b[31m",
    b"\xe2\x80\xae",
    b"0x10",
]


def damage(raw: bytes, random_: random.Random) -> bytes:
    """A few changes: bits flipped, pieces cut, doubled, swapped, or odd bytes put in."""
    data = bytearray(raw)
    for _ in range(random_.choice([1, 1, 2, 3, 8, 30])):
        size = len(data)
        start = random_.randrange(size + 1)
        stop = min(size, start + random_.choice([1, 1, 2, 4, 16, 200]))
        match random_.randrange(8):
            case 0 if size:
                data[min(start, size - 1)] ^= 1 << random_.randrange(8)
            case 1:
                data[start:start] = random_.choice(INTERESTING)
            case 2:
                data[start:stop] = b""
            case 3:
                data[start:start] = data[start:stop] * random_.choice([1, 2, 9])
            case 4:
                data[start:stop] = random_.randbytes(stop - start)
            case 5:
                data[start:stop] = random_.choice(INTERESTING)
            case 6 if random_.random() < 0.2:
                del data[start:]
            case _:
                data[start:stop] = bytes(stop - start)
    return bytes(data)
