"""Archives to read in tests, made in memory."""

import io
import zipfile


def zipped(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


class _Codes:
    """Codes of a .Z file, written in groups of eight of one width."""

    def __init__(self, max_bits: int):
        self.written, self.group, self.bits = bytearray([0x1F, 0x9D, 0x80 | max_bits]), [], 9

    def put(self, code: int) -> None:
        self.group.append(code)
        if len(self.group) == 8:
            self.end_group()

    def end_group(self, whole: bool = True) -> None:
        value = sum(code << i * self.bits for i, code in enumerate(self.group))
        size = self.bits if whole else -(-len(self.group) * self.bits // 8)
        self.written += value.to_bytes(size if self.group else 0, "little")
        self.group = []

    def widen(self, bits: int) -> None:
        self.end_group()
        self.bits = bits


def compressed(content: bytes, max_bits: int = 16, clear_when_full: bool = False) -> bytes:
    """What Unix compress makes of the content; `gzip -dc` reads it back."""
    alphabet = {bytes([value]): value for value in range(256)}
    codes, table, last, word = _Codes(max_bits), dict(alphabet), 256, b""
    for value in content:
        longer = word + bytes([value])
        if longer in table:
            word = longer
            continue
        codes.put(table[word])
        if last + 1 < 1 << max_bits:
            last += 1
            table[longer] = last
            if last >= 1 << codes.bits and codes.bits < max_bits:
                codes.widen(codes.bits + 1)
        elif clear_when_full:
            codes.put(256)
            codes.widen(9)
            table, last = dict(alphabet), 256
        word = bytes([value])
    if word:
        codes.put(table[word])
    codes.end_group(whole=False)
    return bytes(codes.written)
