"""A set of whole numbers kept as disjoint ranges: numbers that were voided, skipped or lost."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field


@dataclass(slots=True)
class Ranges:
    """Sorted, disjoint, neighbours joined."""

    firsts: list[int] = field(default_factory=list)
    lasts: list[int] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.firsts)

    def __contains__(self, number: int) -> bool:
        return self.end_of(number) is not None

    def pairs(self) -> tuple[tuple[int, int], ...]:
        """All ranges, first and last included."""
        return tuple(zip(self.firsts, self.lasts, strict=True))

    def end_of(self, number: int) -> int | None:
        """The last number of the range that holds `number`."""
        at = bisect_right(self.firsts, number) - 1
        return self.lasts[at] if at >= 0 and self.lasts[at] >= number else None

    def add(self, first: int, last: int) -> None:
        """Put a range in; what is in already stays."""
        if last < first:
            return
        low = bisect_right(self.firsts, first - 1)
        if low and self.lasts[low - 1] >= first - 1:
            low -= 1
        high = low
        while high < len(self.firsts) and self.firsts[high] <= last + 1:
            first = min(first, self.firsts[high])
            last = max(last, self.lasts[high])
            high += 1
        self.firsts[low:high] = [first]
        self.lasts[low:high] = [last]

    def remove(self, number: int) -> bool:
        """Take one number out; False if it was not in."""
        at = bisect_right(self.firsts, number) - 1
        if at < 0 or self.lasts[at] < number:
            return False
        first, last = self.firsts[at], self.lasts[at]
        rest = [(a, b) for a, b in ((first, number - 1), (number + 1, last)) if a <= b]
        self.firsts[at : at + 1] = [a for a, _ in rest]
        self.lasts[at : at + 1] = [b for _, b in rest]
        return True

    def cut(self, first: int, last: int) -> None:
        """Take a range out, as far as it is in."""
        low = bisect_right(self.firsts, first) - 1
        if low < 0 or self.lasts[low] < first:
            low += 1
        high = bisect_right(self.firsts, last)
        if low >= high:
            return
        rest = [(a, b) for a, b in ((self.firsts[low], first - 1), (last + 1, self.lasts[high - 1])) if a <= b]
        self.firsts[low:high] = [a for a, _ in rest]
        self.lasts[low:high] = [b for _, b in rest]

    def forget_below(self, number: int) -> None:
        """Drop ranges that end below `number`."""
        keep = 0
        while keep < len(self.lasts) and self.lasts[keep] < number:
            keep += 1
        if keep:
            del self.firsts[:keep], self.lasts[:keep]
